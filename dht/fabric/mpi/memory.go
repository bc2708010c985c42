//go:build mpi

package mpi

import (
	"fmt"
	"math/bits"
	"sync"

	"golang.org/x/sys/unix"
)

// memory is mapped buffers for messages: MPI must not be given Go heap.
// Buffers of one size are kept for the next use, and mapped for the life of the
// process, as MPI is. Safe for concurrent use.
type memory struct {
	mu   sync.Mutex
	free [32][][]byte // by power of two
}

// slab is how much is mapped at a time for small buffers, in bytes.
const slab = 256 << 10

// take returns n bytes, n > 0, of undefined content.
func (m *memory) take(n int) ([]byte, error) {
	class := bits.Len(uint(max(n, 4096) - 1))
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.free[class]) == 0 {
		size := 1 << class
		whole, err := unix.Mmap(-1, 0, max(size, slab), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, fmt.Errorf("fabric mpi: map a message buffer of %d bytes: %w", size, err)
		}
		for ; len(whole) >= size; whole = whole[size:] {
			m.free[class] = append(m.free[class], whole[:size:size])
		}
	}
	last := len(m.free[class]) - 1
	b := m.free[class][last]
	m.free[class] = m.free[class][:last]
	return b[:n], nil
}

// give takes back what take returned; nil is nothing.
func (m *memory) give(b []byte) {
	if b == nil {
		return
	}
	class := bits.Len(uint(cap(b) - 1))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free[class] = append(m.free[class], b)
}
