package fault

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestGuard touches memory whose file was truncated: the handler hears of it, with
// the address, after the goroutine's own deferred calls.
func TestGuard(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	unlocked, at := false, make(chan uintptr, 1)
	Handle(func(p any) {
		addr, _ := Addr(p)
		if !unlocked {
			t.Error("it comes before what was deferred")
		}
		at <- addr
		runtime.Goexit()
	})
	defer Handle(nil)
	go func() {
		defer Guard()()
		defer func() { unlocked = true }()
		mem[5000] = 1
	}()
	if got, want := <-at, uintptr(unsafe.Pointer(&mem[5000])); got != want {
		t.Errorf("fault at %#x, want %#x", got, want)
	}
}

// TestOtherPanics: they go on as they are, unless the handler ends them.
func TestOtherPanics(t *testing.T) {
	boom := errors.New("boom")
	for name, f := range map[string]func(p any){
		"no handler": nil,
		"a handler": func(p any) {
			if _, is := Addr(p); is {
				t.Errorf("%v is taken for a fault", p)
			}
			panic(p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			Handle(f)
			defer Handle(nil)
			defer func() {
				if p := recover(); p != boom {
					t.Errorf("panic %v, want %v", p, boom)
				}
			}()
			defer Guard()()
			panic(boom)
		})
	}
}
