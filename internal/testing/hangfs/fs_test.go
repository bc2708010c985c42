package hangfs

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestHang: files read as given; while the server hangs a read waits, and it
// comes back right when it answers.
func TestHang(t *testing.T) {
	dir := t.TempDir()
	want := bytes.Repeat([]byte("0123456789"), 100000)
	fs, err := Mount(dir, map[string][]byte{"a": want, "empty": nil})
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.Open("a")
	if err != nil {
		t.Fatal(err)
	}
	all := make([]byte, len(want)+10)
	if n, err := readAll(f, all); err != nil || !bytes.Equal(all[:n], want) {
		t.Errorf("%d bytes, right: %v, error %v", n, bytes.Equal(all[:n], want), err)
	}
	if none, err := fs.Open("empty"); err != nil {
		t.Error(err)
	} else if n, err := readAll(none, all); n != 0 || err != nil || unix.Close(none) != nil {
		t.Errorf("empty file: %d bytes, error %v", n, err)
	}
	if _, err := fs.Open("b"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	fs.Hang()
	p := make([]byte, 100)
	result := make(chan error)
	go func() {
		_, err := unix.Pread(f, p, 5)
		result <- err
	}()
	for fs.Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-result:
		t.Fatalf("a read came back while the server hung: %v", err)
	default:
	}
	fs.Answer()
	if err := <-result; err != nil || !bytes.Equal(p, want[5:105]) {
		t.Errorf("the read that hung: right: %v, error %v", bytes.Equal(p, want[5:105]), err)
	}
	if n, err := unix.Pread(f, p, int64(len(want)-10)); n != 10 || err != nil {
		t.Errorf("at the end: %d bytes, error %v", n, err)
	}
	if err := unix.Close(f); err != nil {
		t.Error(err)
	}
	if err := fs.Close(); err != nil {
		t.Error(err)
	}
}

// TestCopiedMount: another process that has a copy of all mounts keeps Close from
// nothing.
func TestCopiedMount(t *testing.T) {
	fs, err := Mount(t.TempDir(), map[string][]byte{"a": nil})
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	cat := exec.Command("cat")
	cat.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	in, err := cat.StdinPipe()
	if err == nil {
		err = cat.Start()
	}
	if err != nil {
		t.Fatal(errors.Join(err, fs.Close()))
	}
	closed := make(chan error, 1)
	go func() { closed <- fs.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("Close waits for the other process")
	}
	if err := errors.Join(in.Close(), cat.Wait()); err != nil {
		t.Error(err)
	}
}

// readAll reads a file from its start to its end.
func readAll(fd int, p []byte) (n int, err error) {
	for {
		k, err := unix.Pread(fd, p[n:], int64(n))
		if k <= 0 || err != nil {
			return n, err
		}
		n += k
	}
}

func TestDecode(t *testing.T) {
	p := make([]byte, 50)
	le.PutUint32(p, 50)
	if r, ok := decode(p); !ok || len(r.body) != 10 {
		t.Errorf("%+v, %v", r, ok)
	}
	for _, bad := range [][]byte{nil, p[:39], p[:49]} {
		if r, ok := decode(bad); ok {
			t.Errorf("%d bytes were taken for %+v", len(bad), r)
		}
	}
}
