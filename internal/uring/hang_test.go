package uring

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/hangfs"
)

// hung opens a file on a file system that stops answering.
func hung(t *testing.T, want []byte) (*hangfs.FS, int) {
	t.Helper()
	dir := t.TempDir()
	fs, err := hangfs.Mount(dir, map[string][]byte{"f": want})
	if errors.Is(err, hangfs.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.Open("f")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Close(f)
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	fs.Hang()
	return fs, f
}

// TestHungRead: a read that the kernel cannot cancel stays with its caller: its
// memory is written to after the context has ended, after Close too. Close says
// so, and the ring goes when the read has ended.
func TestHungRead(t *testing.T) {
	want := bytes.Repeat([]byte("abcdefg"), 1000)
	fs, f := hung(t, want)
	other, good := testFile(t, 100)
	r, err := Open(4)
	if err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := make([]byte, 5000)
	type outcome struct {
		n   int
		err error
	}
	result := make(chan outcome, 1)
	go func() {
		n, err := r.Readv(ctx, f, [][]byte{p}, 0)
		result <- outcome{n, err}
	}()
	for fs.Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	q := make([]byte, 100)
	if n, err := r.Readv(t.Context(), int(other.Fd()), [][]byte{q}, 0); n != 100 || err != nil || !bytes.Equal(q, good) {
		t.Errorf("a read beside a hung one: %d, %v", n, err)
	}
	cancel()
	ended, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if err := r.Close(ended); !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close while a read hangs: %v", err)
	}
	select {
	case o := <-result:
		t.Fatalf("Readv returned while the kernel had its memory: %+v", o)
	case <-r.Done():
		t.Fatal("the ring says that it is done while a read hangs")
	default:
	}
	fs.Answer()
	o := <-result
	if o.err == nil && !bytes.Equal(p[:o.n], want[:o.n]) || o.err != nil && !errors.Is(o.err, context.Canceled) {
		t.Errorf("the hung read in the end: %+v", o)
	}
	<-r.Done()
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestHungReadsAreBounded: no more reads hang in the kernel than the ring has
// slots, and the next one obeys its context.
func TestHungReadsAreBounded(t *testing.T) {
	const depth = 3
	fs, f := hung(t, make([]byte, 1<<20))
	r, err := Open(depth)
	if err != nil {
		t.Skip(err)
	}
	for i := range depth {
		go r.Readv(t.Context(), f, [][]byte{make([]byte, 100)}, int64(i))
	}
	for fs.Waiting() < depth {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := r.Readv(ctx, f, [][]byte{make([]byte, 100)}, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one read more: %v", err)
	}
	if n := fs.Waiting(); n != depth {
		t.Errorf("%d reads hang, want %d", n, depth)
	}
	fs.Answer()
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
