package cascade

// tally is what a block's names say together, kept in step with each of them: a
// block may have very many, such as the metadata that is the same for all blocks
// of a model, and none of them is to cost more for that.
type nameStats struct {
	prefixes int    // names that are marked as shared prefixes
	leading  int    // names with a child that has a block
	leases   int    // on any of the names
	depth    uint32 // the least of the names
	shallow  int    // names of that depth
}

// add adds a name to a block's.
func (b *blockState) add(n *name) {
	n.nth = len(b.names)
	b.names = append(b.names, n)
	b.count(n, 1)
	b.updateMinDepth(n.entry.Depth)
}

// remove undoes enroll. The name's entry has not changed since.
func (b *blockState) remove(n *name) {
	last := b.names[len(b.names)-1]
	b.names[n.nth], last.nth = last, n.nth
	b.names[len(b.names)-1] = nil
	b.names = b.names[:len(b.names)-1]
	b.count(n, -1)
	if n.entry.Depth != b.depth {
		return
	}
	if b.shallow--; b.shallow > 0 {
		return
	}
	b.depth = 0
	for _, other := range b.names {
		b.updateMinDepth(other.entry.Depth)
	}
}

// updateMinDepth counts the depth of one name more.
func (b *blockState) updateMinDepth(depth uint32) {
	switch {
	case b.shallow == 0 || depth < b.depth:
		b.depth, b.shallow = depth, 1
	case depth == b.depth:
		b.shallow++
	}
}

func (b *blockState) count(n *name, by int) {
	if n.entry.Prefix {
		b.prefixes += by
	}
	if n.stored > 0 {
		b.leading += by
	}
	b.leases += by * len(n.leases)
}

// lead counts one child more or less of n that has a block.
func (n *name) lead(by int32) {
	was := n.stored > 0
	n.stored += by
	if is := n.stored > 0; is != was && n.block != nil {
		if is {
			n.block.leading++
		} else {
			n.block.leading--
		}
	}
}
