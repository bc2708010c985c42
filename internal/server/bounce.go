package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
)

const (
	// bounceBytes is the most that one receive of a value asks for: small enough
	// to stay in a core's second level cache beside what the kernel copies from.
	bounceBytes = 128 << 10

	// keepBounces bounds how many are kept for a core. More are in use only
	// where a goroutine loses its core while it copies.
	keepBounces = 2

	// shelves is how many cores have their own; those of larger numbers share.
	shelves = 64
)

// bounces are memory outside the Go heap through which values pass from sockets
// into tiers. What the kernel copies to a user it writes through the core's
// caches, which first fetch what was at that place before; bytes that pass
// through the same few pages again and again never leave the cache, and go to
// their place past it, checksummed on the way. Each core has its own, or they
// would lie in the cache of another half of the time. It may be used by any
// goroutine.
type bounces [shelves]shelf

// shelf holds the bounces that a core used.
type shelf struct {
	mu   sync.Mutex
	free [][]byte
	_    [64]byte // the next is another core's
}

var passing bounces

// take is a bounce for one goroutine, until it gives it back to the shelf.
func (b *bounces) take() (*shelf, []byte, error) {
	s := &b[currentCore()%shelves]
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 { // the youngest, which is in the cache still
		p := s.free[n-1]
		s.free = s.free[:n-1]
		return s, p, nil
	}
	p, err := unix.Mmap(-1, 0, bounceBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("server: memory for a value on its way: %w", os.NewSyscallError("mmap", err))
	}
	return s, p, nil
}

func (s *shelf) give(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == keepBounces {
		_ = unix.Munmap(p) // it was mapped
		return
	}
	s.free = append(s.free, p)
}

// pour appends the next n bytes that the client sends to a stage.
func (w *wire) pour(n int64, st *cascade.Stage) error {
	w.spin.arriving.Add(1)
	defer w.spin.arriving.Add(-1)
	if k := min(int64(len(w.first)), n); k > 0 {
		st.Append(w.first[:k])
		w.first = w.first[k:]
		n -= k
	}
	for n > 0 {
		k, err := w.pourSome(n, st)
		if n -= k; n == 0 || err != nil {
			return err
		}
		if err := w.awaitMore(); err != nil {
			return err
		}
	}
	return nil
}

// awaitMore waits for a client in the middle of a value.
func (w *wire) awaitMore() error {
	switch seen := w.spin.watch(w, 1); {
	case seen == came:
		return nil
	case seen == inVain && !w.moved: // who had begun is not expected to pause
		moveAway()
		w.moved = true
		return nil
	}
	return w.await()
}

// gather receives bytes of a value that has no room yet, until p is full of them;
// n of them are there.
func (w *wire) gather(p []byte, n int) error {
	w.spin.arriving.Add(1)
	defer w.spin.arriving.Add(-1)
	k := copy(p[n:], w.first)
	w.first = w.first[k:]
	n += k
	for n < len(p) {
		k, err := w.recvBytes(p[n:])
		if n += k; errors.Is(err, errStalled) {
			err = w.awaitMore()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// discard receives n bytes that nobody wants.
func (w *wire) discard(n int64) error {
	_, err := io.CopyN(io.Discard, w, n)
	return err
}

// pourSome appends what has come of the next n bytes, and tells how much. It
// holds a bounce no longer than that takes: clients that pause have none.
func (w *wire) pourSome(n int64, st *cascade.Stage) (poured int64, err error) {
	shelf, p, err := passing.take()
	if err != nil {
		return 0, err
	}
	defer shelf.give(p)
	for at := 0; ; {
		k, err := w.recvBytes(p[at:min(int64(len(p)), int64(at)+n-poured)])
		at, poured = at+k, poured+int64(k)
		if err == nil && at < len(p) && poured < n {
			continue
		}
		// What has come goes to its place when nothing more is there, while
		// the client sends on.
		st.Append(p[:at])
		at = 0
		switch {
		case errors.Is(err, errStalled):
			return poured, nil
		case err != nil || poured == n:
			return poured, err
		}
	}
}

// await waits for a client in the middle of a value: for a moment in the kernel,
// then without a thread. One that pauses for long does not keep others from
// watching.
func (w *wire) await() error {
	leave, ok := w.enter()
	if ok && w.pollTimed(linger) {
		<-leave
		return nil
	}
	w.spin.arriving.Add(-1)
	defer w.spin.arriving.Add(1)
	if ok {
		came := w.poll(threadPatience)
		if <-leave; came {
			return nil
		}
	}
	if err := w.lot.park(w, stallDeadline); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return errStalled
}
