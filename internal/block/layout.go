package block

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrBadLayout marks a layout that no blocks can have.
var ErrBadLayout = errors.New("block: not a layout of blocks")

// MaxDType bounds the text of Layout.DType, in bytes.
const MaxDType = 64

// Layout is how the blocks of a namespace are made: the fields of CASCADE's KVBlock
// that all blocks of one namespace share. Zero is: not known.
type Layout struct {
	Bytes    int64  `json:"bytes,omitempty"`     // of a whole block
	KeyBytes int64  `json:"key_bytes,omitempty"` // of them those of the keys, at the start; the rest are values
	Tokens   uint32 `json:"tokens,omitempty"`    // of a whole block
	Layers   uint32 `json:"layers,omitempty"`
	Heads    uint32 `json:"heads,omitempty"`    // of keys and values, on this rank of a tensor-parallel group
	HeadDim  uint32 `json:"head_dim,omitempty"` // elements of a head
	DType    string `json:"dtype,omitempty"`
}

// IsZero reports whether nothing is known.
func (l Layout) IsZero() bool { return l == Layout{} }

// String describes what is known for people, "-" for nothing.
func (l Layout) String() string {
	var parts []string
	for _, f := range []struct {
		n    uint32
		what string
	}{{l.Tokens, "tokens"}, {l.Layers, "layers"}, {l.Heads, "heads"}, {l.HeadDim, "elements"}} {
		if f.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", f.n, f.what))
		}
	}
	if l.DType != "" {
		parts = append(parts, strconv.Quote(l.DType))
	}
	if l.Bytes > 0 {
		parts = append(parts, fmt.Sprintf("keys %d of %d bytes", l.KeyBytes, l.Bytes))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// Check returns what is wrong with a layout. It matches ErrBadLayout.
func (l Layout) Check() error {
	switch {
	case l.Bytes < 0 || l.Bytes > MaxSize:
		return fmt.Errorf("%w: blocks of %d bytes; they have 0 to %d", ErrBadLayout, l.Bytes, MaxSize)
	case l.KeyBytes < 0 || l.KeyBytes > l.Bytes:
		return fmt.Errorf("%w: %d bytes of keys in blocks of %d", ErrBadLayout, l.KeyBytes, l.Bytes)
	case len(l.DType) > MaxDType:
		return fmt.Errorf("%w: a dtype of %d bytes; %d at most", ErrBadLayout, len(l.DType), MaxDType)
	}
	return nil
}

// LayoutNumbers is the size of what AppendNumbers appends, in bytes.
const LayoutNumbers = 32

// AppendNumbers appends all but DType as files have it: little-endian, Bytes and KeyBytes
// of 8 bytes, then Tokens, Layers, Heads and HeadDim of 4 (docs/format.md §1.5).
func (l *Layout) AppendNumbers(p []byte) []byte {
	for _, v := range []int64{l.Bytes, l.KeyBytes} {
		p = binary.LittleEndian.AppendUint64(p, uint64(v))
	}
	for _, v := range []uint32{l.Tokens, l.Layers, l.Heads, l.HeadDim} {
		p = binary.LittleEndian.AppendUint32(p, v)
	}
	return p
}

// SetNumbers reads what AppendNumbers wrote at the start of p.
func (l *Layout) SetNumbers(p []byte) {
	le := binary.LittleEndian
	l.Bytes, l.KeyBytes = int64(le.Uint64(p)), int64(le.Uint64(p[8:]))
	l.Tokens, l.Layers, l.Heads, l.HeadDim = le.Uint32(p[16:]), le.Uint32(p[20:]), le.Uint32(p[24:]), le.Uint32(p[28:])
}

// KeysOf returns how many bytes of a block of size bytes are keys: that share which
// they have of a whole block. False where that is not known, or no whole number.
func (l Layout) KeysOf(size int64) (int64, bool) {
	if l.Bytes == 0 || size < 0 || size > MaxSize || size*l.KeyBytes%l.Bytes != 0 {
		return 0, false
	}
	return size * l.KeyBytes / l.Bytes, true
}
