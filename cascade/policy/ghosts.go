package policy

// ghosts are blocks that have left, a bounded number: the last ones, by fingerprint.
type ghosts struct {
	table[ghost]
	oldest, newest uint32
	bytes          int64 // that they took in the tier
}

// ghost is a block that has left.
type ghost struct {
	older, newer uint32
	size         uint32 // bytes
}

func newGhosts() ghosts { return ghosts{table: newTable[ghost](), oldest: none, newest: none} }

// remember makes a block the newest.
func (g *ghosts) remember(print uint64, size uint32) {
	g.forget(g.find(print))
	i := g.add(print)
	*g.at(i) = ghost{older: g.newest, newer: none, size: size}
	if g.newest == none {
		g.oldest = i
	} else {
		g.at(g.newest).newer = i
	}
	g.newest = i
	g.bytes += int64(size)
}

// forget forgets a ghost, if there is one. It reports whether there is.
func (g *ghosts) forget(i uint32) bool {
	if i == none {
		return false
	}
	e := *g.at(i)
	if e.older == none {
		g.oldest = e.newer
	} else {
		g.at(e.older).newer = e.newer
	}
	if e.newer == none {
		g.newest = e.older
	} else {
		g.at(e.newer).older = e.older
	}
	g.bytes -= int64(e.size)
	g.remove(i)
	return true
}

// trim forgets the oldest while they are more than so many bytes, or more ghosts than most.
func (g *ghosts) trim(bytes int64, most int) {
	for g.oldest != none && (g.bytes > bytes || g.len() > most) {
		g.forget(g.oldest)
	}
}
