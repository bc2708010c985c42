package block

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
)

// Digest widths an ID can have, in bits.
const (
	Bits128 = 128 // CASCADE §III-A: the first 32 hex digits; the default
	Bits256 = 256 // the whole digest, for those who want no birthday bound at all
)

// ErrBadID marks text that is not a block id.
var ErrBadID = errors.New("block: not a block id")

// ID addresses a block by its bytes. It is a comparable value, usable as a map
// key. A 128-bit id occupies the first half and leaves the second half zero; a
// provisional id does the reverse, which no digest does (probability 2⁻¹²⁸).
type ID [32]byte

// Provisional returns the local id of a block whose digest is not known yet.
// n must be unique within the rank and not zero.
func Provisional(n uint64) ID {
	var id ID
	binary.BigEndian.PutUint64(id[24:], n)
	return id
}

// ProvisionalNumber returns the n that Provisional was given, 0 for any other id.
func ProvisionalNumber(id ID) uint64 {
	if !id.IsProvisional() {
		return 0
	}
	return binary.BigEndian.Uint64(id[24:])
}

// IsZero reports whether id is the zero value, which addresses nothing.
func (id ID) IsZero() bool { return id == ID{} }

// IsProvisional reports whether id stands in for a digest still to be computed.
func (id ID) IsProvisional() bool {
	return [16]byte(id[:16]) == [16]byte{} && !id.IsZero()
}

// String returns 32 lower-case hex digits, 64 for a 256-bit id, and "pending-N"
// for a provisional one.
func (id ID) String() string {
	switch {
	case id.IsProvisional():
		return fmt.Sprintf("pending-%d", ProvisionalNumber(id))
	case [16]byte(id[16:]) == [16]byte{}:
		return hex.EncodeToString(id[:16])
	default:
		return hex.EncodeToString(id[:])
	}
}

// ParseID reads the form String writes for a completed id. The error matches
// ErrBadID.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 32 && len(s) != 64 {
		return ID{}, fmt.Errorf("%w: %q has %d characters, want 32 or 64 hex digits", ErrBadID, s, len(s))
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return ID{}, fmt.Errorf("%w: %q: %v", ErrBadID, s, err)
	}
	if id.IsZero() || id.IsProvisional() {
		return ID{}, fmt.Errorf("%w: %q begins with 128 zero bits, which no digest does", ErrBadID, s)
	}
	return id, nil
}

// Hasher computes an ID over bytes that arrive in pieces. It is not safe for
// concurrent use.
type Hasher struct {
	sum  hash.Hash
	bits int
}

// NewHasher returns a Hasher for ids of the given width; any width but Bits256
// means Bits128.
func NewHasher(bits int) *Hasher { return &Hasher{sum: sha256.New(), bits: bits} }

// Write adds bytes; it never fails.
func (h *Hasher) Write(p []byte) (int, error) { return h.sum.Write(p) }

// Reset forgets everything written.
func (h *Hasher) Reset() { h.sum.Reset() }

// ID returns the id of the bytes written since the last Reset.
func (h *Hasher) ID() ID {
	var id ID
	h.sum.Sum(id[:0])
	if h.bits != Bits256 {
		clear(id[16:])
	}
	return id
}

// Sum returns the id of the concatenated parts: SHA256(key_data ‖ value_data)
// cut to bits (CASCADE equation 3).
func Sum(bits int, parts ...[]byte) ID {
	h := NewHasher(bits)
	for _, p := range parts {
		h.Write(p)
	}
	return h.ID()
}
