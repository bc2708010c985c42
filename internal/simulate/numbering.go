package simulate

import "math/bits"

// numbering gives hashes small numbers, in the order in which they come. It takes 8 bytes
// for a hash and 4 to 8 for its place in the table; Go's maps take twice that.
type numbering struct {
	hashes []uint64 // by number
	table  []uint32 // open addressing; number + 1; a power of two
	shift  int      // of a hash to its place
}

func newNumbering() *numbering {
	n := &numbering{}
	n.resize(1 << 10)
	return n
}

// number returns a hash's number, and whether it is a new one.
func (n *numbering) number(hash uint64) (number uint32, isNew bool) {
	at := n.find(hash)
	if n.table[at] != 0 {
		return n.table[at] - 1, false
	}
	n.hashes = append(n.hashes, hash)
	n.table[at] = uint32(len(n.hashes))
	if len(n.hashes) > len(n.table)*3/4 {
		n.resize(2 * len(n.table))
	}
	return uint32(len(n.hashes) - 1), true
}

// find returns the place of a hash, or the free one where it belongs.
func (n *numbering) find(hash uint64) int {
	at := int(scramble(hash) >> n.shift)
	for n.table[at] != 0 && n.hashes[n.table[at]-1] != hash {
		at = (at + 1) & (len(n.table) - 1)
	}
	return at
}

func (n *numbering) resize(size int) {
	n.table, n.shift = make([]uint32, size), 64-bits.TrailingZeros(uint(size))
	for i, hash := range n.hashes {
		n.table[n.find(hash)] = uint32(i + 1)
	}
}

// scramble maps different numbers to different hashes, which look random.
func scramble(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
