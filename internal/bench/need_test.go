package bench

import (
	"os"
	"os/exec"
	"testing"
)

// need skips a test whose program is missing; with CI=true it fails instead.
func need(t *testing.T, program, remedy string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err == nil {
		return path
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing; %s", program, remedy)
	}
	t.Skipf("%s is missing; %s", program, remedy)
	return ""
}
