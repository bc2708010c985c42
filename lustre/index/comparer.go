package index

import "github.com/cockroachdb/pebble/v2"

// comparer orders keys by their bytes. Filters hold the first 17 of each: the
// run of a name, the first half of a block id.
var comparer = newComparer()

func newComparer() *pebble.Comparer {
	c := *pebble.DefaultComparer
	c.Name = "cascade.index.1"
	c.Split = func(key []byte) int { return min(len(key), prefixSize) }
	c.ImmediateSuccessor = nextPrefix
	c.FormatKey = nil
	return &c
}

// nextPrefix appends the smallest prefix above a: a with a zero behind it, or,
// when it has its full length, the next number of as many bytes. No key begins
// with 17 bytes of 0xFF, so there is one.
func nextPrefix(dst, a []byte) []byte {
	at := len(dst)
	dst = append(dst, a...)
	if len(a) < prefixSize {
		return append(dst, 0)
	}
	for i := len(dst) - 1; i >= at; i-- {
		if dst[i]++; dst[i] != 0 {
			break
		}
	}
	return dst
}
