package names

import (
	"iter"
	"maps"

	"cascadekv/internal/block"
)

// Space is one namespace: its names and its counters.
type Space struct {
	Counters // the owner counts

	// NamesParents is whether clients name the parents of its names. The second half
	// of a pair names its first half anyway.
	NamesParents bool

	name       string
	byKey      map[string]*Name
	list       []*Name // names with a block, dense
	referenced int64   // bytes
}

// Counters count what clients do in a namespace.
type Counters struct {
	Puts      uint64
	Aliases   uint64 // names that were put for bytes which another name of the namespace had
	Lookups   uint64
	Found     uint64 // of Lookups
	Hits      uint64
	Misses    uint64
	Inferred  uint64 // parents that were inferred
	Recovered int    // names that were there when the store was opened
}

// Name returns the namespace's name.
func (sp *Space) Name() string { return sp.name }

// List returns the names with a block, for reading until the next operation. A
// name that goes leaves its place to the last one.
func (sp *Space) List() []*Name { return sp.list }

// Referenced returns the bytes of the blocks of all names.
func (sp *Space) Referenced() int64 { return sp.referenced }

// Get returns a name or placeholder, nil when there is neither.
func (sp *Space) Get(key string) *Name { return sp.byKey[key] }

// GetBytes is Get for a key in bytes, which it does not keep.
func (sp *Space) GetBytes(key []byte) *Name { return sp.byKey[string(key)] }

// Nodes returns all names and placeholders, in no order.
func (sp *Space) Nodes() iter.Seq[*Name] { return maps.Values(sp.byKey) }

// node returns the name or placeholder of key, making one when needed.
func (sp *Space) node(key string) *Name {
	n := sp.byKey[key]
	if n == nil {
		n = &Name{space: sp, record: block.Name{Namespace: sp.name, Key: key}}
		sp.byKey[key] = n
	}
	return n
}

// enlist gives n a place in the list, if it has none.
func (sp *Space) enlist(n *Name) {
	if n.index < len(sp.list) && sp.list[n.index] == n {
		return
	}
	n.index = len(sp.list)
	sp.list = append(sp.list, n)
}

// delist takes n's place away.
func (sp *Space) delist(n *Name) {
	end := len(sp.list) - 1
	last := sp.list[end]
	sp.list[n.index], last.index = last, n.index
	sp.list[end] = nil
	sp.list = sp.list[:end]
}
