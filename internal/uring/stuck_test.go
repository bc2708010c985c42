package uring

import (
	"bytes"
	"errors"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestThreadOfTheCallerHangs: a thread that has begun reads and then hangs in
// the kernel, in a write to a server that is gone, does not hold up those reads.
// The kernel has the thread that handed a read past the page cache over finish
// it.
func TestThreadOfTheCallerHangs(t *testing.T) {
	server, f := hung(t, make([]byte, 100))
	file, data := testFile(t, 1<<20)
	direct, err := unix.Open(file.Name(), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no O_DIRECT in %s: %v", t.TempDir(), err)
	}
	defer unix.Close(direct)
	r := open(t, 4)
	room := mapOwned(t, len(data))
	for i := range 8 {
		clear(room.mem)
		server.Hang()
		op := operationOf(room.mem)
		began, ended := make(chan error), make(chan struct{})
		go func() {
			defer close(ended)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began <- r.start(direct, op, 0, <-r.slots)
			var b [10]byte
			_, _ = unix.Pread(f, b[:], 0)
		}()
		if err := <-began; err != nil {
			t.Fatal(err)
		}
		for server.Waiting() == 0 {
			time.Sleep(100 * time.Microsecond)
		}
		<-op.done
		if server.Waiting() == 0 {
			t.Fatalf("read %d ended only when its thread no longer hung", i)
		}
		if int(op.res) != len(data) || !bytes.Equal(room.mem, data) {
			t.Errorf("read %d: %d bytes", i, op.res)
		}
		server.Answer()
		<-ended
	}
}

func operationOf(p []byte) *operation {
	v := unix.Iovec{Base: unsafe.SliceData(p)}
	v.SetLen(len(p))
	return &operation{vec: []unix.Iovec{v}, bufs: [][]byte{p}}
}

// TestRefuse: what the kernel does not take fails with its error, and the queue
// can be used on.
func TestRefuse(t *testing.T) {
	r := open(t, 2)
	f, want := testFile(t, 100)
	p := make([]byte, 100)
	op := operationOf(p)
	slot := <-r.slots
	r.mu.Lock() // so that the driver, who has not heard of it, hands nothing over
	op.done = make(chan struct{})
	r.ops[slot] = op
	r.running++
	ok := r.sq.push(submission{opcode: opReadv, fd: int32(f.Fd()), user: uint64(slot), addr: uint64(uintptr(unsafe.Pointer(&op.vec[0]))), len: 1})
	r.mu.Unlock()
	r.refuse(unix.ENOMEM)
	<-op.done
	if _, _, err := verdict(op.res, nil, 0); !ok || !errors.Is(err, unix.ENOMEM) || !bytes.Equal(p, make([]byte, 100)) {
		t.Errorf("refused: %v", err)
	}
	for range 20 { // more often than the queue has places
		if n, err := r.Readv(t.Context(), int(f.Fd()), [][]byte{p}, 0); n != 100 || err != nil || !bytes.Equal(p, want) {
			t.Fatalf("a read afterwards: %d, %v", n, err)
		}
	}
}
