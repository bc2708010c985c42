package layout

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestLustreSaysYesAndDoesNot holds the ways in which a request succeeds without
// effect, and what the report makes of each.
func TestLustreSaysYesAndDoesNot(t *testing.T) {
	dir := onLustre(t)
	asked := Plain(2, 8<<20, "")
	ignored := func(t *testing.T, r Report, want Kind) {
		t.Helper()
		if len(r.Differences) != 1 || r.Differences[0].Kind != want {
			t.Errorf("%v, want %q", r, want)
		}
	}
	t.Run("setstripe is restricted", func(t *testing.T) {
		needServers(t)
		tool(t, "lctl", "set_param", "llite.*.enable_setstripe_gid=0")
		t.Cleanup(func() { tool(t, "lctl", "set_param", "llite.*.enable_setstripe_gid=-1") })
		var r Report
		var f *os.File
		var err error
		withoutResource(t, func() { f, r, err = Create(filepath.Join(dir, "restricted"), 0o600, asked) })
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		ignored(t, r, Ignored)
		if _, err := f.WriteAt([]byte("x"), 0); err != nil {
			t.Errorf("the file cannot be written: %v", err)
		}
		bare, err := open(filepath.Join(dir, "bare"), openFlags|unix.O_CREAT|unix.O_EXCL|delayCreate, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(bare)
		if _, err := unix.Pwrite(bare, []byte("x"), 0); err != unix.EBADF {
			t.Errorf("a file without objects is written: %v; create need not open twice by now", err)
		}
	})
	t.Run("attribute of a file that has a layout", func(t *testing.T) {
		f, _, err := Create(filepath.Join(dir, "twice"), 0o600, Plain(1, 1<<20, ""))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r := Report{Path: f.Name(), Asked: Layout{[]Component{{End: EOF, Count: 2}}}}
		if err := ask(int(f.Fd()), &r); err != nil {
			t.Fatalf("it says no by now: %v", err)
		}
		if err := readBack(int(f.Fd()), &r); err != nil {
			t.Fatal(err)
		}
		ignored(t, r, Ignored)
	})
	t.Run("file made in append mode", func(t *testing.T) {
		sub := filepath.Join(dir, "append")
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := SetDefault(sub, asked); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(sub, "f")
		tool(t, "sh", "-c", "echo x >> "+path)
		r := Report{Path: path, Asked: asked}
		var err error
		if r.Granted, err = Read(path); err != nil {
			t.Fatal(err)
		}
		r.compare()
		ignored(t, r, Fewer)
	})
	t.Run("the call that reads layouts", func(t *testing.T) {
		f, r, err := Create(filepath.Join(dir, "read"), 0o600, asked)
		if err != nil || !r.OK() {
			t.Fatalf("%v, %v", r, err)
		}
		defer f.Close()
		const getStripe = 0x4008669b
		b := make([]byte, maxXattr)
		le.PutUint32(b, magicV3)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), getStripe, uintptr(unsafe.Pointer(&b[0]))); errno != 0 {
			t.Fatal(errno)
		}
		second := b[sizeV1+sizeObject : sizeV1+2*sizeObject]
		if le.Uint16(b[28:]) != 2 || !bytes.Equal(second, make([]byte, sizeObject)) {
			t.Errorf("it gives all objects by now: %x", b[:sizeV1+2*sizeObject])
		}
		if len(r.Granted.OSTs()) != 2 {
			t.Errorf("read back as %v", r.Granted)
		}
	})
}

// withoutResource calls do on a thread without CAP_SYS_RESOURCE.
func withoutResource(t *testing.T, do func()) {
	t.Helper()
	failed := make(chan error)
	go func() { // the thread ends with the goroutine: it is not given back
		runtime.LockOSThread()
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var d [2]unix.CapUserData
		err := unix.Capget(&h, &d[0])
		if err == nil {
			d[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
			err = unix.Capset(&h, &d[0])
		}
		if err == nil {
			do()
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}
