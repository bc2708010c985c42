package netio

import (
	"bytes"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/noise"
)

// TestPausingClientsHoldNoBounce: what a client that stops in the middle of a
// value keeps is its place in the tier, and no more.
func TestPausingClientsHoldNoBounce(t *testing.T) {
	w, client := connPair(t, &spinner{})
	value := randomBytes(1, 100_000)
	st := &memory{}
	runtime.LockOSThread() // not unlocked: the thread ends with the test
	var one unix.CPUSet
	one.Set(int(currentCore()))
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	shelf, p, err := perCore.take()
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

// TestPourTakesWhatWasReadBefore: an earlier program of this process may have
// read the first bytes of a value.
func TestPourTakesWhatWasReadBefore(t *testing.T) {
	value := randomBytes(2, 30_000)
	for _, before := range []int{1, 12_000, len(value), len(value) + 6} {
		w, client := connPair(t, &spinner{})
		st := &memory{}
		stream := append(bytes.Clone(value), "\r\nPING"...)
		w.pushback = stream[:before]
		send(t, client, stream[before:])
		if err := w.Pour(int64(len(value)), st); err != nil || !bytes.Equal(st.p, value) {
			t.Errorf("%d bytes were read before: the value is another, or %v", before, err)
		}
		if left := max(0, before-len(value)); len(w.pushback) != left {
			t.Errorf("%d of %d bytes are left of what was read before, want %d", len(w.pushback), before, left)
		}
	}
}

// TestPausingClientsStopNobodyFromWatching: what they began is not on its way any
// more.
func TestPausingClientsStopNobodyFromWatching(t *testing.T) {
	w, client := connPair(t, &spinner{})
	value := randomBytes(3, 100_000)
	st := &memory{}
	send(t, client, value[:50_000])
	done := make(chan error, 1)
	go func() { done <- w.Pour(int64(len(value)), st) }()
	for deadline := time.Now().Add(20 * time.Second); unread(t, client) > 0 || w.spin.arriving.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d values are on their way, %d bytes unread", w.spin.arriving.Load(), unread(t, client))
		}
	}
	send(t, client, value[50_000:])
	if err := <-done; err != nil || !bytes.Equal(st.p, value) {
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

// memory is where a value is appended.
type memory struct{ p []byte }

// Append implements Appender.
func (m *memory) Append(p []byte) { m.p = append(m.p, p...) }

func randomBytes(seed uint64, n int) []byte { return noise.Bytes(seed, n) }
