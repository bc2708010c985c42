package replay

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// maxScratch bounds the memory in which a session holds blocks in flight.
// Longer requests are put in parts. It is only touched as far as it is used.
const maxScratch = 256 << 20

// scratch is room for some blocks outside the Go heap: their bytes would
// otherwise dominate a heap that must be seen to stay small.
type scratch struct {
	mem       []byte
	blockSize int
}

// newScratch maps room for up to want blocks, at least one.
func newScratch(blockSize, want int) (*scratch, error) {
	n := max(1, min(want, maxScratch/blockSize))
	mem, err := unix.Mmap(-1, 0, n*blockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("replay: map %d bytes for %d blocks: %w; use smaller blocks", n*blockSize, n, err)
	}
	return &scratch{mem: mem, blockSize: blockSize}, nil
}

// blocks is how many blocks there is room for.
func (s *scratch) blocks() int { return len(s.mem) / s.blockSize }

// block returns the room of block i.
func (s *scratch) block(i int) []byte { return s.mem[i*s.blockSize:][:s.blockSize:s.blockSize] }

func (s *scratch) close() error {
	mem := s.mem
	s.mem = nil
	if mem == nil {
		return nil
	}
	return unix.Munmap(mem)
}
