package kit

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// StampBytes is the part of a value that differs each time it is stored.
const StampBytes = 16

// Values are blocks of one size outside the Go heap, filled with random bytes
// once. Only their stamps change afterwards.
type Values struct {
	Size int
	mem  []byte
	seq  uint64 // last stamp
}

// NewValues maps and fills n blocks. The caller closes them. Errors: ErrTooSmall,
// those of mmap.
func NewValues(n, size int) (*Values, error) {
	if size < StampBytes {
		return nil, fmt.Errorf("%w: %d bytes, want at least %d", ErrTooSmall, size, StampBytes)
	}
	mem, err := Map(n * size)
	if err != nil {
		return nil, err
	}
	FillRandom(mem, rand.NewPCG(rand.Uint64(), rand.Uint64()))
	return &Values{mem: mem, Size: size}, nil
}

// Map returns n bytes of memory outside the Go heap, for unix.Munmap to release.
func Map(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("bench: map %d bytes for values: %w; use smaller values", n, err)
	}
	return mem, nil
}

// FillRandom fills p from r.
func FillRandom(p []byte, r rand.Source) {
	for ; len(p) >= 8; p = p[8:] {
		binary.LittleEndian.PutUint64(p, r.Uint64())
	}
	for i := range p {
		p[i] = byte(r.Uint64())
	}
}

// At is block i.
func (v *Values) At(i int) []byte { return v.mem[i*v.Size:][:v.Size:v.Size] }

// Stamps reserves n stamps and returns the number before the first, so that the
// stamps of concurrent goroutines differ.
func (v *Values) Stamps(n int) uint64 {
	first := v.seq
	v.seq += uint64(n)
	return first
}

// Stamp makes a block unlike every other: no seq may be used twice.
func Stamp(p []byte, seq uint64) {
	binary.LittleEndian.PutUint64(p, seq)
	binary.LittleEndian.PutUint64(p[8:], ^seq)
}

// Check compares what came back for block i, stored with stamp seq. Error:
// ErrWrong.
func (v *Values) Check(i int, seq uint64, got []byte) error {
	if len(got) != v.Size {
		return fmt.Errorf("%w: value %d has %d bytes, stored were %d", ErrWrong, i, len(got), v.Size)
	}
	var head [StampBytes]byte
	Stamp(head[:], seq)
	if !bytes.Equal(got[:StampBytes], head[:]) {
		return fmt.Errorf("%w: value %d is not of the last SET: it begins %x, not %x", ErrWrong, i, got[:StampBytes], head)
	}
	if want := v.At(i); !bytes.Equal(got[StampBytes:], want[StampBytes:]) {
		at := StampBytes
		for got[at] == want[at] {
			at++
		}
		return fmt.Errorf("%w: value %d differs from byte %d of %d on", ErrWrong, i, at, v.Size)
	}
	return nil
}

// Close unmaps the blocks.
func (v *Values) Close() error { return unix.Munmap(v.mem) }
