package testneed

import (
	"os"
	"os/exec"
	"testing"
)

// That skips the test unless what is there, or with CI=true fails it. remedy
// ends the line that is printed.
func That(t testing.TB, there bool, what, remedy string) {
	t.Helper()
	switch {
	case there:
	case os.Getenv("CI") == "true":
		t.Fatalf("%s is missing: %s", what, remedy)
	default:
		t.Skipf("%s is missing: %s", what, remedy)
	}
}

// Program returns where in PATH a program is, which must be there (That).
func Program(t testing.TB, name, remedy string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	That(t, err == nil, name, remedy)
	return path
}
