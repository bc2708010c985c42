package crc32c

import "hash/crc32"

var table = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the CRC32C of p.
func Checksum(p []byte) uint32 { return Update(0, p) }

// Update returns the CRC32C of the bytes behind crc followed by p. It may be
// called from any goroutine and only reads p.
func Update(crc uint32, p []byte) uint32 {
	if n := len(p) / foldBlock * foldBlock; n >= foldMin && canFold {
		crc = ^fold(^crc, &p[0], n/foldBlock, &folds)
		p = p[n:]
	}
	return crc32.Update(crc, table, p)
}

const (
	// foldBlock is what the folding loop takes at a time, in bytes.
	foldBlock = 256

	// foldMin is the length from which folding pays, in bytes.
	foldMin = 1024
)

// multipliers move 128 bits of a message some distance to its end, modulo the
// polynomial: [0] the half that comes first in memory, [1] the other.
type multipliers [2]uint64

// folds holds the distances that fold needs, in bits: that of a whole block,
// and of its registers' widths, to join them at the end.
var folds = [3]multipliers{distance(8 * foldBlock), distance(256), distance(128)}

// distance computes the multipliers of a distance. In the bit-reflected form
// of a CRC a carry-less product comes out one bit too low, hence the shift, and
// each half is aligned to the 32 bits of the remainder, hence the ±32.
func distance(bits int) multipliers {
	return multipliers{
		uint64(powerOfX(bits+32)) << 1,
		uint64(powerOfX(bits-32)) << 1,
	}
}

// powerOfX returns x^n modulo the polynomial, bit-reflected.
func powerOfX(n int) uint32 {
	r := uint32(1) << 31 // x^0
	for range n {
		carry := r & 1
		r >>= 1
		if carry != 0 {
			r ^= crc32.Castagnoli
		}
	}
	return r
}
