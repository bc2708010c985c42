package residency

import (
	"cascadekv/cascade/names"
)

// leastAlias is the least block of which other names are counted as aliases:
// what is smaller is no KV block, but what engines put beside them, which may be
// the same for all.
const leastAlias = 4 << 10

// IsAlias reports whether a name of the namespace, to become one of b, finds
// another there: the same content came under another key. n is the name as it
// is, nil when there is none.
func (b *Block) IsAlias(n *names.Name, ns string) bool {
	if b.Info.Size < leastAlias || n != nil && BlockOf(n) == b {
		return false
	}
	return b.HasNameIn(ns)
}
