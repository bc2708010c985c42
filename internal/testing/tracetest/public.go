package tracetest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"cascadekv/internal/testing/guest"
)

// Public returns the path of a public trace. Where it is missing the test is
// skipped; with CI=true it fails, unless the whole folder is missing: a clone
// elsewhere has no way to get it.
func Public(t testing.TB, name string) string {
	t.Helper()
	path, there := Find(t, name)
	if there {
		return path
	}
	if _, err := os.Stat(filepath.Dir(filepath.Dir(path))); err == nil && os.Getenv("CI") == "true" {
		t.Fatalf("public trace %s is missing: put it there", path)
	}
	t.Skipf("public trace %s is missing: put it there", path)
	return ""
}

// Find returns the path of a public trace, in the folder that CASCADE_SHARED names or else in the sibling "shared" of the
// repository, and whether it is there.
func Find(t testing.TB, name string) (path string, there bool) {
	t.Helper()
	shared := os.Getenv(guest.SharedVariable)
	if shared == "" {
		shared = filepath.Join(checkout(t), "..", "shared")
	}
	path = filepath.Join(shared, "traces", name)
	_, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return path, err == nil
}

// checkout is the folder of go.mod above the running test.
func checkout(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal("no go.mod above the test")
	return ""
}
