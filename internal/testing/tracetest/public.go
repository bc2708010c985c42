package tracetest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Public returns the path of a public trace. Where it is missing the test is
// skipped; with CI=true it fails, unless the whole folder is missing: a clone
// elsewhere has no way to get it.
func Public(t testing.TB, name string) string {
	t.Helper()
	dir := filepath.Join(checkout(t), "..", "shared")
	path := filepath.Join(dir, "traces", name)
	switch _, err := os.Stat(path); {
	case err == nil:
		return path
	case !errors.Is(err, fs.ErrNotExist):
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err == nil && os.Getenv("CI") == "true" {
		t.Fatalf("public trace %s is missing: put it there", path)
	}
	t.Skipf("public trace %s is missing: put it there", path)
	return ""
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
