package netio

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
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

var perCore bounces

// take returns a bounce for one goroutine, which gives it back to the shelf.
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
