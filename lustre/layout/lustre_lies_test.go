package layout

import (
	"bytes"
	"errors"
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
		withoutResource(t, func() { f, r, err = createFile(filepath.Join(dir, "restricted"), 0o600, asked) })
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
		f, _, err := createFile(filepath.Join(dir, "twice"), 0o600, Plain(1, 1<<20, ""))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r := Report{Path: f.Name(), Asked: Layout{[]Component{{End: EOF, Count: 2}}}}
		if err := askFor(int(f.Fd()), &r); err != nil {
			t.Fatalf("it says no by now: %v", err)
		}
		if err := readBack(&r); err != nil {
			t.Fatal(err)
		}
		ignored(t, r, Ignored)
	})
	t.Run("file made in append mode", func(t *testing.T) {
		sub := filepath.Join(dir, "append")
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := setDefault(sub, asked); err != nil {
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
		f, r, err := createFile(filepath.Join(dir, "read"), 0o600, asked)
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

// TestLustreDefaultOfOnesOwnDirectory: who may make files in a directory of
// one's own may set its default too, and where a site restricts the layouts of
// files, defaults are not restricted. A default is refused in another's
// directory only, so segments, which lie in directories of their ranks' own, need
// no layouts one by one.
func TestLustreDefaultOfOnesOwnDirectory(t *testing.T) {
	const user = 1000
	dir := onLustre(t)
	needServers(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		owner             int
		limit             string // enable_setstripe_gid
		asked             Layout
		byDefault, byFile bool // granted
	}{
		"own":                   {user, "-1", Plain(2, 8<<20, ""), true, true},
		"own, restricted":       {user, "0", Plain(2, 8<<20, ""), true, false},
		"own, components":       {user, "-1", granted(t, "-E 64M -c 1 -E eof -c 2").Layout(), true, true},
		"another's":             {0, "-1", Plain(2, 8<<20, ""), false, true},
		"another's, components": {0, "-1", granted(t, "-E 64M -c 1 -E eof -c 2").Layout(), false, true},
		"another's, restricted": {0, "0", Plain(2, 8<<20, ""), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			tool(t, "lctl", "set_param", "llite.*.enable_setstripe_gid="+c.limit)
			defer tool(t, "lctl", "set_param", "llite.*.enable_setstripe_gid=-1")
			sub := filepath.Join(dir, name)
			if err := errors.Join(os.Mkdir(sub, 0o700), os.Chown(sub, c.owner, -1), os.Chmod(sub, 0o777)); err != nil {
				t.Fatal(err)
			}
			var ofFile, inherited Report
			var fileErr, defaultErr, inheritedErr error
			withoutResource(t, func() {
				if fileErr = unix.Setfsuid(user); fileErr == nil {
					ofFile, fileErr = closed(createFile(filepath.Join(sub, "asked"), 0o600, c.asked))
					_, defaultErr = setDefault(sub, c.asked)
					inherited, inheritedErr = closed(createFile(filepath.Join(sub, "inherits"), 0o600, Layout{}))
				}
			})
			if err := errors.Join(fileErr, inheritedErr); err != nil {
				t.Fatal(err)
			}
			if ofFile.OK() != c.byFile {
				t.Errorf("a file that asks: %v", ofFile)
			}
			same := Compare(c.asked, inherited.Granted) == nil
			if same != c.byDefault || (defaultErr == nil) != c.byDefault || !c.byDefault && !errors.Is(defaultErr, unix.EPERM) {
				t.Errorf("the default: %v; a file that inherits it: %v", defaultErr, inherited)
			}
		})
	}
}

// closed closes what Create made.
func closed(f *os.File, r Report, err error) (Report, error) {
	if err == nil {
		err = f.Close()
	}
	return r, err
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
