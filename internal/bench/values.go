package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// stampBytes is the part of a value that differs in every put.
const stampBytes = 16

// values are blocks of one size outside the Go heap, filled with random bytes
// once. Only their stamps change afterwards.
type values struct {
	mem  []byte
	size int
	seq  uint64 // last stamp
}

// newValues maps and fills n blocks.
func newValues(n, size int) (*values, error) {
	if size < stampBytes {
		return nil, fmt.Errorf("%w: %d bytes, want at least %d", ErrTooSmall, size, stampBytes)
	}
	mem, err := mapRoom(n * size)
	if err != nil {
		return nil, err
	}
	fillRandom(mem, rand.NewPCG(rand.Uint64(), rand.Uint64()))
	return &values{mem: mem, size: size}, nil
}

func mapRoom(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("bench: map %d bytes for values: %w; use smaller values", n, err)
	}
	return mem, nil
}

func fillRandom(p []byte, r rand.Source) {
	for ; len(p) >= 8; p = p[8:] {
		binary.LittleEndian.PutUint64(p, r.Uint64())
	}
	for i := range p {
		p[i] = byte(r.Uint64())
	}
}

// at is block i.
func (v *values) at(i int) []byte { return v.mem[i*v.size:][:v.size:v.size] }

// stamps reserves n stamps and returns the number before the first. It makes
// the stamps of goroutines that run side by side differ.
func (v *values) stamps(n int) uint64 {
	first := v.seq
	v.seq += uint64(n)
	return first
}

// stamp makes a block unlike every other: seq must not come twice.
func stamp(p []byte, seq uint64) {
	binary.LittleEndian.PutUint64(p, seq)
	binary.LittleEndian.PutUint64(p[8:], ^seq)
}

// check compares what came back for block i, stored with stamp seq.
func (v *values) check(i int, seq uint64, got []byte) error {
	want := v.at(i)
	if len(got) != v.size {
		return fmt.Errorf("%w: value %d has %d bytes, stored were %d", ErrWrong, i, len(got), v.size)
	}
	var head [stampBytes]byte
	stamp(head[:], seq)
	if !bytes.Equal(got[:stampBytes], head[:]) {
		return fmt.Errorf("%w: value %d is not of the last SET: it begins %x, not %x", ErrWrong, i, got[:stampBytes], head)
	}
	if !bytes.Equal(got[stampBytes:], want[stampBytes:]) {
		at := stampBytes
		for got[at] == want[at] {
			at++
		}
		return fmt.Errorf("%w: value %d differs from byte %d of %d on", ErrWrong, i, at, v.size)
	}
	return nil
}

func (v *values) close() error { return unix.Munmap(v.mem) }
