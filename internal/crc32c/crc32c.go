package crc32c

import (
	"hash/crc32"
	"unsafe"
)

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

// Copy copies the bytes of src to dst, which has as many and does not overlap
// it, and returns the CRC32C of the bytes behind crc followed by them. From
// copyMin on, what is copied is not left in the CPU's caches.
func Copy(crc uint32, dst, src []byte) uint32 {
	if n := aligned(dst); canFold && len(src) >= n+copyMin {
		crc = Copy(crc, dst[:n], src[:n])
		dst, src = dst[n:], src[n:]
		n = len(src) / foldBlock * foldBlock
		crc = ^foldCopy(^crc, &dst[0], &src[0], n/foldBlock, &folds)
		dst, src = dst[n:], src[n:]
	}
	for len(src) > 0 {
		n := min(len(src), copyStep)
		copy(dst, src[:n])
		crc = Update(crc, src[:n])
		dst, src = dst[n:], src[n:]
	}
	return crc
}

// aligned is how many bytes are before the first place in p that foldCopy can
// write to.
func aligned(p []byte) int {
	return int(-uintptr(unsafe.Pointer(unsafe.SliceData(p))) % foldAlign)
}

const (
	// foldBlock is what the folding loop takes at a time, in bytes.
	foldBlock = 256

	// foldMin is the length from which folding pays, in bytes.
	foldMin = 1024

	// foldAlign is what the copying loop's writes are aligned to, in bytes.
	foldAlign = 64

	// copyMin is the length from which copying past the caches pays, in bytes.
	copyMin = 16 << 10

	// copyStep is copied at a time, and then checksummed, where the CPU can not
	// do both in one pass, in bytes.
	copyStep = 64 << 10
)

// multipliers move 128 bits of a message some distance to its end, modulo the
// polynomial: [0] the half that comes first in memory, [1] the other.
type multipliers [2]uint64

// folds holds the distances that fold needs, in bits: that of a whole block,
// and of its registers' widths, to join them at the end.
var folds = [4]multipliers{distance(8 * foldBlock), distance(512), distance(256), distance(128)}

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
