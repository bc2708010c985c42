package names

import "cascadekv/internal/block"

// Block is one stored block as its names have it. The owner embeds it in its own
// record of the block and points Owner at that, so that the way from a name to
// the record is one load.
type Block struct {
	Info  block.Info // the owner may change the ID
	Owner any

	names []*Name
	nameStats
	levels uint8 // bit n: the block is in level n
}

// nameStats are aggregates over a block's names, kept incrementally: a block may
// have millions, such as the metadata that is the same for all blocks of a model.
type nameStats struct {
	prefixes int32  // names that are marked as shared prefixes
	leading  int32  // names with a child that has a block
	depth    uint32 // the least of the names
	shallow  int32  // names of that depth
	leases   int32  // on any of the names
	own      int32  // names that are no copies
}

// Names returns the names of b, for reading until the next operation.
func (b *Block) Names() []*Name { return b.names }

// In reports whether b is in a level.
func (b *Block) In(level int) bool { return b.levels&(1<<level) != 0 }

// InFirst reports whether b is in one of the first n levels.
func (b *Block) InFirst(n int) bool { return b.levels&(1<<n-1) != 0 }

// InAny reports whether b is in some level.
func (b *Block) InAny() bool { return b.levels != 0 }

// Prefix reports whether a name of b is marked as a shared prefix.
func (b *Block) Prefix() bool { return b.prefixes > 0 }

// Leads reports whether a child of one of b's names has a block.
func (b *Block) Leads() bool { return b.leading > 0 }

// Leased reports whether somebody has a lease of one of b's names.
func (b *Block) Leased() bool { return b.leases > 0 }

// Needed reports whether giving b up would break a lease or a chain.
func (b *Block) Needed() bool { return b.Leads() || b.Leased() }

// Depth returns the least depth of b's names, 0 without names.
func (b *Block) Depth() uint32 { return b.depth }

// maxCompared bounds the names of a block that HasNameIn looks at: it may have
// very many, and almost always the first decides.
const maxCompared = 8

// HasNameIn reports whether one of the first few names of b is in a namespace.
func (b *Block) HasNameIn(ns string) bool {
	for _, n := range b.names[:min(len(b.names), maxCompared)] {
		if n.space.name == ns {
			return true
		}
	}
	return false
}

// Records returns the records of b's names.
func (b *Block) Records() []block.Name {
	records := make([]block.Name, len(b.names))
	for i, n := range b.names {
		records[i] = n.record
	}
	return records
}

func (b *Block) add(n *Name) {
	n.nth = len(b.names)
	b.names = append(b.names, n)
	b.count(n, 1)
	b.updateMinDepth(n.record.Depth)
}

// remove undoes add. The name's record has not changed since.
func (b *Block) remove(n *Name) {
	last := b.names[len(b.names)-1]
	b.names[n.nth], last.nth = last, n.nth
	b.names[len(b.names)-1] = nil
	b.names = b.names[:len(b.names)-1]
	b.count(n, -1)
	if n.record.Depth != b.depth {
		return
	}
	if b.shallow--; b.shallow > 0 {
		return
	}
	b.depth = 0
	for _, other := range b.names {
		b.updateMinDepth(other.record.Depth)
	}
}

// updateMinDepth counts the depth of one name more.
func (b *Block) updateMinDepth(depth uint32) {
	switch {
	case b.shallow == 0 || depth < b.depth:
		b.depth, b.shallow = depth, 1
	case depth == b.depth:
		b.shallow++
	}
}

func (b *Block) count(n *Name, by int32) {
	if n.record.Prefix {
		b.prefixes += by
	}
	if n.stored > 0 {
		b.leading += by
	}
	b.leases += by * int32(len(n.leases))
}
