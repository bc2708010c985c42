package index

// sieve is a Bloom filter over all names and ids that were put into an index
// since it was empty. What is not in it needs no search. It is sound for keys
// that are hashes already.
type sieve struct {
	bits []uint64
	mask uint64
}

const (
	sieveBits   = 16 // for each entry, and so one miss in a thousand for nothing
	sieveHashes = 4
)

// newSieve makes one for so many entries; with more it only gets worse.
func newSieve(entries int) *sieve {
	words := uint64(1)
	for words*64 < uint64(entries)*sieveBits {
		words *= 2
	}
	return &sieve{bits: make([]uint64, words), mask: words*64 - 1}
}

// add puts a key of 16 bytes in and reports whether it may have been there.
func (s *sieve) add(key []byte) bool {
	h, step := le.Uint64(key), le.Uint64(key[8:])|1
	was := true
	for range sieveHashes {
		bit := h & s.mask
		word := &s.bits[bit/64]
		was = was && *word&(1<<(bit%64)) != 0
		*word |= 1 << (bit % 64)
		h += step
	}
	return was
}
