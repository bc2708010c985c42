package trace

import (
	"encoding/binary"
	"math/bits"
)

// The payload of a hash id is a stream of 64-bit little-endian words; word i is
// a function of the id and i alone, so any part of a block can be made or
// checked without the rest. One multiplication a word keeps it faster than
// memory.
const (
	weyl  = 0x9e3779b97f4a7c15 // 2⁶⁴ divided by the golden ratio: steps that never repeat
	salt  = 0xd6e8feb86659fd93 // odd, with bits evenly set
	scale = 0xc2b2ae3d27d4eb4f

	// Multiples of weyl, modulo 2⁶⁴: constants do not wrap.
	weyl2 = 0x3c6ef372fe94f82a
	weyl3 = 0xdaa66d2c7ddf743f
	weyl4 = 0x78dde6e5fd29f054
)

// origin spreads neighbouring ids over the whole range, so that their streams
// do not overlap.
func origin(hashID uint64) uint64 {
	x := hashID + weyl
	x = (x ^ x>>32) * salt
	x = (x ^ x>>29) * salt
	return x ^ x>>32
}

func word(x uint64) uint64 {
	hi, lo := bits.Mul64(x^salt, scale)
	return hi ^ lo ^ x
}

// Fill writes the payload of hashID to dst: the first len(dst) bytes of its
// stream, whatever len(dst) is.
func Fill(dst []byte, hashID uint64) {
	x := origin(hashID)
	for ; len(dst) >= 32; dst = dst[32:] {
		binary.LittleEndian.PutUint64(dst[0:8], word(x))
		binary.LittleEndian.PutUint64(dst[8:16], word(x+weyl))
		binary.LittleEndian.PutUint64(dst[16:24], word(x+weyl2))
		binary.LittleEndian.PutUint64(dst[24:32], word(x+weyl3))
		x += weyl4
	}
	var last [8]byte
	for len(dst) > 0 {
		binary.LittleEndian.PutUint64(last[:], word(x))
		dst = dst[copy(dst, last[:]):]
		x += weyl
	}
}

// Verify returns how many bytes of got differ from the payload of hashID. It
// allocates nothing.
func Verify(got []byte, hashID uint64) int {
	x := origin(hashID)
	wrong := 0
	for ; len(got) >= 32; got = got[32:] {
		a := binary.LittleEndian.Uint64(got[0:8]) ^ word(x)
		b := binary.LittleEndian.Uint64(got[8:16]) ^ word(x+weyl)
		c := binary.LittleEndian.Uint64(got[16:24]) ^ word(x+weyl2)
		d := binary.LittleEndian.Uint64(got[24:32]) ^ word(x+weyl3)
		if a|b|c|d != 0 {
			wrong += nonzero(a) + nonzero(b) + nonzero(c) + nonzero(d)
		}
		x += weyl4
	}
	var last [8]byte
	for len(got) > 0 {
		binary.LittleEndian.PutUint64(last[:], word(x))
		n := min(len(got), 8)
		for i := range n {
			if got[i] != last[i] {
				wrong++
			}
		}
		got = got[n:]
		x += weyl
	}
	return wrong
}

// nonzero counts the bytes of x that are not zero.
func nonzero(x uint64) int {
	n := 0
	for ; x != 0; x >>= 8 {
		if x&0xff != 0 {
			n++
		}
	}
	return n
}
