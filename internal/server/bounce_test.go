package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/internal/resp"
)

// TestValuesInPieces: values of sizes around those of a bounce come in pieces,
// with pauses between, over several connections at once.
func TestValuesInPieces(t *testing.T) {
	r := newRig(t, 64<<20)
	sizes := []int{1, inFlight, bounceBytes - 1, bounceBytes, bounceBytes + 1, 2*bounceBytes + 12_345, 1 << 20}
	pieces := []int{700, 5_000, bounceBytes, bounceBytes + 1, 300_000}
	var wg sync.WaitGroup
	for i, size := range sizes {
		for k, piece := range pieces {
			network := []string{"unix", "tcp"}[(i+k)%2]
			conn, _ := r.raw(network)
			wg.Go(func() {
				key, value := fmt.Sprint("pieces", i, k), randomBytes(uint64(i*100+k), size)
				if err := setInPieces(conn, key, value, piece); err != nil {
					t.Errorf("%d bytes in pieces of %d over %s: %v", size, piece, network, err)
				}
			})
		}
	}
	wg.Wait()
	if n := r.srv.spin.arriving.Load(); n != 0 {
		t.Errorf("%d values are still counted as arriving", n)
	}
}

// setInPieces stores a value, pausing now and then, and compares what GET says.
func setInPieces(conn net.Conn, key string, value []byte, piece int) error {
	command := fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(key), key, len(value), value)
	for i := 0; len(command) > 0; i++ {
		p := command[:min(piece, len(command))]
		if _, err := conn.Write(p); err != nil {
			return err
		}
		command = command[len(p):]
		if i%5 == 1 && i < 50 {
			time.Sleep(time.Millisecond) // longer than anybody watches
		}
	}
	var ok [5]byte
	if _, err := io.ReadFull(conn, ok[:]); err != nil || string(ok[:]) != "+OK\r\n" {
		return fmt.Errorf("answer %q, %w", ok, err)
	}
	got := make([]byte, len(value))
	n, err := resp.NewClient(conn, 0).Get(key, got)
	if err == nil && !bytes.Equal(got[:n], value) {
		err = errors.New("what was stored is not what was sent")
	}
	return err
}

// stage is room for a value, given back when the test ends.
func (r *rig) stage(size int) *cascade.Stage {
	r.t.Helper()
	st, err := r.store.Stage(r.t.Context(), int64(size))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(st.Abort)
	return st
}

// TestValueWithoutItsEnd: a client that stops behind the bytes of a value does
// not hold their room for ever either.
func TestValueWithoutItsEnd(t *testing.T) {
	r := newRig(t, 16<<20)
	w, _ := wirePair(t, &spinner{})
	v := valueSink{conn: &conn{srv: r.srv, wire: w}}
	defer v.abort()
	if err := v.Receive([]byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	if w.patience != stallDeadline {
		t.Fatalf("the end of the command may take %v, want %v", w.patience, stallDeadline)
	}
	w.patience = time.Millisecond
	if _, err := w.Read(make([]byte, 2)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after that: %v", err)
	}
}

// TestPausingClientsHoldNoBounce: what a client that stops in the middle of a
// value keeps is its place in the tier, and no more.
func TestPausingClientsHoldNoBounce(t *testing.T) {
	r := newRig(t, 16<<20)
	w, client := wirePair(t, &spinner{})
	value := randomBytes(1, 100_000)
	st := r.stage(len(value))
	runtime.LockOSThread() // not unlocked: the thread ends with the test
	var one unix.CPUSet
	one.Set(int(currentCore()))
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	shelf, p, err := passing.take()
	if err != nil {
		t.Fatal(err)
	}
	shelf.give(p)
	free := len(shelf.free)
	left := int64(len(value))
	for part := range slices.Chunk(value, 30_000) {
		send(t, client, part)
		n, err := w.pourSome(left, st)
		if err != nil || n != int64(len(part)) {
			t.Fatalf("poured %d of %d bytes, %v", n, len(part), err)
		}
		left -= n
		if len(shelf.free) != free {
			t.Fatalf("%d bounces are free after %d bytes, %d before", len(shelf.free), n, free)
		}
	}
}

// TestBouncesAreNotHoarded: who loses its core while it copies makes no more than
// a few.
func TestBouncesAreNotHoarded(t *testing.T) {
	var b bounces
	type lent struct {
		shelf *shelf
		p     []byte
	}
	var all []lent
	for range 3 * keepBounces {
		s, p, err := b.take()
		if err != nil {
			t.Fatal(err)
		}
		p[0], p[bounceBytes-1] = 1, 1
		all = append(all, lent{s, p})
	}
	for _, l := range all {
		l.shelf.give(l.p)
	}
	for i := range b {
		if n := len(b[i].free); n > keepBounces {
			t.Errorf("core %d keeps %d", i, n)
		}
		for _, p := range b[i].free {
			_ = unix.Munmap(p)
		}
	}
}

// TestClientThatLeavesInAValue: its room comes back.
func TestClientThatLeavesInAValue(t *testing.T) {
	r := newRig(t, 16<<20)
	conn, _ := r.raw("unix")
	if _, err := fmt.Fprintf(conn, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8000000\r\n%s", randomBytes(1, 3_000_000)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	c := r.client("unix")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		err := c.Set("large", make([]byte, 14_000_000)) // fits once the other's room is free
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if got, err := c.Do("EXISTS", "k"); err != nil || got.Int != 0 {
		t.Errorf("half a value is there: %v, %v", got, err)
	}
}

// TestPourTakesWhatWasReadBefore: an earlier program of this process may have
// read the first bytes of a value.
func TestPourTakesWhatWasReadBefore(t *testing.T) {
	r := newRig(t, 16<<20)
	value := randomBytes(2, 30_000)
	for _, before := range []int{1, 12_000, len(value), len(value) + 6} {
		w, client := wirePair(t, &spinner{})
		st := r.stage(len(value))
		stream := append(bytes.Clone(value), "\r\nPING"...)
		w.first = stream[:before]
		send(t, client, stream[before:])
		if err := w.pour(int64(len(value)), st); err != nil || !bytes.Equal(st.Bytes(), value) {
			t.Errorf("%d bytes were read before: the value is another, or %v", before, err)
		}
		if left := max(0, before-len(value)); len(w.first) != left {
			t.Errorf("%d of %d bytes are left of what was read before, want %d", len(w.first), before, left)
		}
	}
}

// TestPausingClientsStopNobodyFromWatching: what they began is not on its way any
// more.
func TestPausingClientsStopNobodyFromWatching(t *testing.T) {
	r := newRig(t, 16<<20)
	w, client := wirePair(t, &spinner{})
	value := randomBytes(3, 100_000)
	st := r.stage(len(value))
	send(t, client, value[:50_000])
	done := make(chan error, 1)
	go func() { done <- w.pour(int64(len(value)), st) }()
	for deadline := time.Now().Add(20 * time.Second); unread(t, client) > 0 || w.spin.arriving.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d values are on their way, %d bytes unread", w.spin.arriving.Load(), unread(t, client))
		}
	}
	send(t, client, value[50_000:])
	if err := <-done; err != nil || !bytes.Equal(st.Bytes(), value) {
		t.Errorf("after the pause: the value is another, or %v", err)
	}
	if n := w.spin.arriving.Load(); n != 0 {
		t.Errorf("%d values are counted as arriving", n)
	}
}

// unread is how much of what was sent the other end has not received, or a bit
// more.
func unread(t *testing.T, fd int) int {
	t.Helper()
	n, err := unix.IoctlGetInt(fd, unix.TIOCOUTQ)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
