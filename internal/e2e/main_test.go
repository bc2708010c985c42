package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// bin is the folder of the programs under test.
var bin string

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" {
		os.Exit(helper())
	}
	os.Exit(buildAndRun(m))
}

// binVariable names a folder with both programs, for those who want to test
// what they built otherwise. Without it the tests build their own.
const binVariable = "CASCADE_E2E_BIN"

func buildAndRun(m *testing.M) int {
	if bin = os.Getenv(binVariable); bin != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "cascade-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-o", dir+"/", "cascadekv/cmd/cascaded", "cascadekv/cmd/cascade", "cascadekv/cmd/cascade-bench")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the programs under test: %v\n%s", err, out)
		return 1
	}
	bin = dir
	return m.Run()
}

// program is the path of a program under test.
func program(name string) string { return filepath.Join(bin, name) }

// long skips a test that takes long, or needs much that is not Go, where only a
// short run is asked for (make test).
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes long: make test-all runs it")
	}
}
