package vfs

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Scratch lends pieces of memory outside the Go heap, all of one size and
// aligned to pages: for bytes that pass through and for bytes that nobody
// wants. It is safe for concurrent use. Make one with NewScratch.
type Scratch struct {
	size int
	keep int

	mu   sync.Mutex
	idle [][]byte
}

// NewScratch makes a pool of pieces of size bytes, a multiple of the page
// size, that keeps up to keep of them while nobody uses them. How many are lent
// at once is bounded by who borrows.
func NewScratch(size, keep int) *Scratch { return &Scratch{size: size, keep: keep} }

// Get lends a piece, with old bytes in it; the borrower gives it back with Put
// when nothing touches it any more, the kernel included.
func (s *Scratch) Get() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		p := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return p, nil
	}
	p, err := unix.Mmap(-1, 0, s.size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("vfs: map %d bytes of scratch memory: %w", s.size, err)
	}
	return p, nil
}

// Put takes back what Get lent.
func (s *Scratch) Put(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) < s.keep {
		s.idle = append(s.idle, p)
		return
	}
	_ = unix.Munmap(p) // it was mapped by Get: this cannot fail
}

// Close unmaps what is idle now, and later every piece that comes back.
func (s *Scratch) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = 0
	for _, p := range s.idle {
		_ = unix.Munmap(p)
	}
	s.idle = nil
}
