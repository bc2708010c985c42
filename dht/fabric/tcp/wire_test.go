package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wirePair returns a wire and the other end of its stream.
func wirePair(t *testing.T) (*wire, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWire(near, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.close()
		far.Close()
	})
	return w, far.(*net.TCPConn)
}

// TestReceiveAll: what comes in pieces of any size is received whole, and not a byte
// of what follows.
func TestReceiveAll(t *testing.T) {
	w, far := wirePair(t)
	sizes := []int{1, 4096, bulk - 1, bulk, bulk + 1, 2 * bulk, 3*bulk + 7, 4 << 20, 1}
	total := 0
	for _, n := range sizes {
		total += n
	}
	sent := make([]byte, total)
	for i := range sent {
		sent[i] = byte(i * 7 >> 3)
	}
	go func() {
		for rest := sent; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(100<<10))
			if _, err := far.Write(rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
	}()
	got := make([]byte, total)
	at := 0
	for _, n := range sizes {
		if err := w.receiveAll(got[at : at+n]); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		at += n
	}
	if !bytes.Equal(got, sent) {
		t.Error("what was received is not what was sent")
	}
	if !w.idle() {
		t.Error("something is left")
	}
}

// TestReceiveAllEnds: an end of the stream and an interruption end it, however much is
// still to come.
func TestReceiveAllEnds(t *testing.T) {
	for name, here := range map[string]int{"at once": 0, "after a little": 4096, "after much": 2*bulk + 5} {
		w, far := wirePair(t)
		if _, err := far.Write(make([]byte, here)); err != nil {
			t.Fatal(err)
		}
		if err := far.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if err := w.receiveAll(make([]byte, 4<<20)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("an end %s: %v", name, err)
		}
		w, far = wirePair(t)
		if _, err := far.Write(make([]byte, here)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		context.AfterFunc(ctx, w.interrupt)
		if err := w.receiveAll(make([]byte, 4<<20)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("an interruption %s: %v", name, err)
		}
		cancel()
	}
}

// TestReceiveAllTakesLittle: a payload of which little is here for long is taken out of the kernel's buffer, which
// might have no room for more.
func TestReceiveAllTakesLittle(t *testing.T) {
	w, far := wirePair(t)
	done := make(chan error, 1)
	go func() { done <- w.receiveAll(make([]byte, 4<<20)) }()
	if _, err := far.Write(make([]byte, bulk/8)); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		// What is neither sent on nor taken is in one of the two buffers.
		waiting, err := unix.IoctlGetInt(w.fd, unix.TIOCINQ)
		if err != nil {
			t.Fatal(os.NewSyscallError("ioctl", err))
		}
		if waiting == 0 && sent(t, far) {
			break
		}
		if time.Now().After(end) {
			t.Errorf("%d bytes are not taken", waiting)
			break
		}
	}
	w.interrupt()
	if err := <-done; !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

// sent reports whether the other end has received all that was written.
func sent(t *testing.T, c *net.TCPConn) (all bool) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			n, err := unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
			all = err == nil && n == 0
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestReceiverSleeps: the thread that receives a large payload is not woken for each
// packet of it.
func TestReceiverSleeps(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const size, packet = 4 << 20, 16 << 10
	w, far := wirePair(t)
	go func() {
		for range size / packet {
			if _, err := far.Write(make([]byte, packet)); err != nil {
				return
			}
			time.Sleep(200 * time.Microsecond)
		}
	}()
	before := switches(t)
	if err := w.receiveAll(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	// One for each time that bulk is here, and as many for a place in Go's scheduler.
	if n := switches(t) - before; n > 4*size/bulk {
		t.Errorf("it slept %d times for %d packets", n, size/packet)
	}
}

// switches is how often this thread has waited for something.
func switches(t *testing.T) int64 {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Fatal(os.NewSyscallError("getrusage", err))
	}
	return u.Nvcsw
}
