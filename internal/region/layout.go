package region

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// ErrLayout means that extents are not what a command may name.
var ErrLayout = errors.New("region: bad extents")

// extentBytes is one extent in a command: offset and length.
const extentBytes = 16

// Extent is a run of bytes of a region. In a Layout it lies inside the region
// and is not empty.
type Extent struct{ Offset, Length int64 }

// Layout describes where the bytes of some blocks lie in a region of a known size:
// each block has as many extents as any other. It does not change.
type Layout struct {
	extents []Extent
	each    int
}

// ParseLayout decodes the extents of so many blocks, pairs of little-endian
// 64-bit numbers, in a region of size bytes. It keeps no part of bulk. The
// error matches ErrLayout.
func ParseLayout(bulk []byte, blocks int, size int64) (Layout, error) {
	n := len(bulk) / extentBytes
	switch {
	case blocks < 1:
		return Layout{}, fmt.Errorf("%w: there is no block", ErrLayout)
	case len(bulk)%extentBytes != 0:
		return Layout{}, fmt.Errorf("%w: %d bytes are not pairs of 64-bit numbers", ErrLayout, len(bulk))
	case n == 0 || n%blocks != 0:
		return Layout{}, fmt.Errorf("%w: %d extents for %d blocks, want the same number for each", ErrLayout, n, blocks)
	}
	l := Layout{extents: make([]Extent, n), each: n / blocks}
	for i := range l.extents {
		offset := binary.LittleEndian.Uint64(bulk[i*extentBytes:])
		length := binary.LittleEndian.Uint64(bulk[i*extentBytes+8:])
		// Subtractions, since a sum may be more than 64 bits hold.
		if length == 0 || length > uint64(size) || offset > uint64(size)-length {
			return Layout{}, fmt.Errorf("%w: extent %d, %d bytes at %d, is not inside a region of %d bytes", ErrLayout, i, length, offset, size)
		}
		l.extents[i] = Extent{Offset: int64(offset), Length: int64(length)}
	}
	return l, nil
}

// Len is the number of extents.
func (l Layout) Len() int { return len(l.extents) }

// Block returns the extents of block i; they are only read.
func (l Layout) Block(i int) []Extent { return l.extents[i*l.each : (i+1)*l.each] }

// Size is the length of block i in bytes. It does not overflow: a command has
// room for fewer than 2^18 extents, of at most MaxSize bytes each.
func (l Layout) Size(i int) int64 {
	var n int64
	for _, e := range l.Block(i) {
		n += e.Length
	}
	return n
}

// CheckDisjoint returns an error that matches ErrLayout if any two extents of
// the layout share a byte.
func (l Layout) CheckDisjoint() error {
	byOffset := l.extents
	order := func(a, b Extent) int { return cmp.Compare(a.Offset, b.Offset) }
	if !slices.IsSortedFunc(byOffset, order) {
		byOffset = slices.Clone(byOffset)
		slices.SortFunc(byOffset, order)
	}
	for i := 1; i < len(byOffset); i++ {
		if a, b := byOffset[i-1], byOffset[i]; a.Offset+a.Length > b.Offset {
			return fmt.Errorf("%w: %d bytes at %d and %d bytes at %d overlap", ErrLayout, a.Length, a.Offset, b.Length, b.Offset)
		}
	}
	return nil
}
