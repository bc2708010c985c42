package codec

import (
	"errors"
	"fmt"
)

// Number is a codec as BLOCK entries name it.
type Number uint8

// The codecs of docs/format.md §4.
const (
	None     Number = 0 // the block itself
	Zstd     Number = 1 // pieces of the block
	Shuffle2 Number = 2 // byte planes of 2-byte values: bf16, fp16
	Shuffle4 Number = 3 // byte planes of 4-byte values: fp32
)

// Numbers are all codecs of this version, in order.
var Numbers = []Number{None, Zstd, Shuffle2, Shuffle4}

// String names the codec as reports do.
func (n Number) String() string {
	switch n {
	case None:
		return "none"
	case Zstd:
		return "zstd"
	case Shuffle2:
		return "shuffle2+zstd"
	case Shuffle4:
		return "shuffle4+zstd"
	}
	return fmt.Sprintf("codec %d", uint8(n))
}

// Known reports whether this version can decode payloads with the number.
func (n Number) Known() bool { return n <= Shuffle4 }

// planes is the number of planes of a piece; 0 without any.
func (n Number) planes() int {
	switch n {
	case Zstd:
		return 1
	case Shuffle2:
		return 2
	case Shuffle4:
		return 4
	}
	return 0
}

// pieceBytes is the length of every piece but the last of a block of size
// bytes. Keys and values are the halves of a block and have other exponents:
// in pieces of their own each gets a Huffman code of its own.
func (n Number) pieceBytes(size int) int {
	if n == Zstd {
		return maxPlane
	}
	return max(pieceStep, min(maxPiece, (size/2+pieceStep-1)/pieceStep*pieceStep))
}

const (
	codecs   = 4 // how many there are
	maxPiece = 256 << 10
	// pieceStep keeps pieces of small blocks at page boundaries, and values of
	// 4 bytes whole.
	pieceStep = 4 << 10
	// maxPlane is the largest block of zstd: a plane is one of them, so no
	// encoder needs a history and no decoder a window.
	maxPlane = 128 << 10
	// lengthBytes is the size of an entry of the table of lengths.
	lengthBytes = 4
)

// Errors of this package. Test with errors.Is.
var (
	ErrUnknown   = errors.New("codec: unknown codec: a newer version wrote it, or the entry is damaged")
	ErrCorrupt   = errors.New("codec: encoded bytes are damaged: read another copy of the block")
	ErrNoGain    = errors.New("codec: the encoding does not fit: store the block as it is")
	ErrBadOption = errors.New("codec: bad option")
)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// layout is how a block of size bytes lies in an encoded payload.
type layout struct {
	size   int
	planes int
	piece  int
	pieces int
}

func layoutOf(n Number, size int) (layout, error) {
	l := layout{size: size, planes: n.planes(), piece: n.pieceBytes(size)}
	if l.planes == 0 {
		return l, fmt.Errorf("%w: %v", ErrUnknown, n)
	}
	l.pieces = (size + l.piece - 1) / l.piece
	return l, nil
}

// table is the length of the table of lengths.
func (l layout) table() int { return lengthBytes * l.planes * l.pieces }

// pieceLen is the length of piece i.
func (l layout) pieceLen(i int) int { return min(l.piece, l.size-i*l.piece) }

// planeLen is the length of plane j of a piece of m bytes.
func (l layout) planeLen(m, j int) int {
	n := m / l.planes
	if j == l.planes-1 {
		n += m % l.planes
	}
	return n
}
