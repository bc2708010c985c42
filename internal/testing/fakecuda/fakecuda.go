package fakecuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/ebitengine/purego"

	"cascadekv/internal/testing/testneed"
)

var built struct {
	sync.Mutex
	dir, path string
}

// Main runs the tests of a package that uses the stand-in, for its TestMain, and returns
// the exit status.
func Main(m *testing.M) int {
	var err error
	if built.dir, err = os.MkdirTemp("", "fakecuda"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(built.dir) }()
	return m.Run()
}

// Library returns the path of the stand-in, built once for the process, which has
// called Main. It skips the test where there is no C compiler.
func Library(t testing.TB) string {
	t.Helper()
	cc := testneed.Program(t, "cc", "apt-get install gcc")
	built.Lock()
	defer built.Unlock()
	if built.path == "" {
		_, file, _, _ := runtime.Caller(0)
		source := filepath.Join(filepath.Dir(file), "../../../gpu/kit/fakecuda.c")
		path := filepath.Join(built.dir, "libfakecuda.so")
		if out, err := exec.Command(cc, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", source, "-o", path, "-lpthread").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		built.path = path
	}
	return built.path
}

// Rules has the stand-in that was opened obey rules until the test ends.
func Rules(t testing.TB, rules string) {
	t.Helper()
	set := func(rules string) {
		handle, err := purego.Dlopen(built.path, purego.RTLD_NOW)
		if err != nil {
			t.Fatal(err)
		}
		var fn func(string)
		purego.RegisterLibFunc(&fn, handle, "fakecuda_rules")
		fn(rules)
	}
	set(rules)
	t.Cleanup(func() { set("") })
}
