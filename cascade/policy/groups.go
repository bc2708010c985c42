package policy

import "math/bits"

// Blocks age in groups. A group is the blocks of a class, in the tier or not, that were used last in one step of the bin of ages in
// which they are. When that step is too old for the bin, the group becomes one of an older bin, or a part of one whose step is longer, for
// which a few of its blocks are read at most: where lists are joined. A block is found in its group by its class and its last use.

// group is what is known of a group, and those of its blocks that may leave, in the order of their last use. Most come in that order,
// and lie in a queue; those that do not, as when a child leaves, lie in a heap beside it.
type group struct {
	weight         uint64 // sum of the shares of its blocks; 0: it has none
	oldest, newest Node   // of the queue
	root           Node   // of the heap
	next           uint32 // number + 1 of the next in its cohort
	class          uint16
}

// noGroup is a group without blocks.
var noGroup = group{oldest: NoNode, newest: NoNode, root: NoNode}

// empty reports whether no block of a group may leave.
func (g *group) empty() bool { return g.oldest == NoNode && g.root == NoNode }

// place is where the group of a block is.
type place struct {
	class     uint16
	bin, step uint8 // step is a place in the ring
}

// ring has the groups of a class in a bin, by the places of their steps: a number + 1, or 0.
type ring [ringSteps]uint32

// cohort is the groups of all classes in one step of a bin, which become too old for it together.
type cohort struct {
	first  uint32 // number + 1, 0 when there is none
	listed uint32 // groups that are not empty
}

func (l *leaves) placeOf(e *history) place {
	if e.class == unaged {
		return place{class: unaged}
	}
	bin := l.ages.bin(e.touched)
	return place{e.class, bin, stepOf(bin, e.touched)}
}

// cell is the number of the cell that a place is in. Blocks without an age have the first one.
func (at place) cell() uint32 {
	if at.class == unaged {
		return 0
	}
	return cellOf(at.class, at.bin)
}

// group returns the group of a place, which is made if there is none.
func (l *leaves) group(at place) *group {
	if at.class == unaged {
		return l.groups.at(0)
	}
	number := &l.rings[at.class][at.bin][at.step]
	if *number == 0 {
		i := l.groups.take()
		*l.groups.at(i) = noGroup
		c := &l.cohorts[at.bin][at.step]
		l.groups.at(i).class, l.groups.at(i).next = at.class, c.first
		c.first, *number = i+1, i+1
	}
	return l.groups.at(*number - 1)
}

// putBack brings a block, which is in the tier if it has a Node, into its group, takeOut takes it out before its class or its last use changes.
func (l *leaves) putBack(e *history, n Node) {
	at := l.placeOf(e)
	g := l.group(at)
	if at.class != unaged {
		g.weight += e.share()
	}
	if n != NoNode {
		l.enterGroup(n, g, at)
	}
}

func (l *leaves) takeOut(e *history, n Node) {
	at := l.placeOf(e)
	g := l.group(at)
	if at.class != unaged {
		g.weight -= e.share()
	}
	if n != NoNode {
		l.leaveGroup(n, g, at)
	}
}

// forgetAll empties all groups.
func (l *leaves) forgetAll() {
	for i := range l.groups.made {
		l.groups.at(i).weight = 0
	}
}

// advance makes a later tick the present: groups that are too old for their bins come into those of their ages. No more can be due than
// there are classes, bins and steps, after whatever time. Older ones move first, so that no step gets into the place of another.
func (l *leaves) advance(now uint32, learned *hazards) {
	starts := l.ages.starts
	l.ages.advance(now)
	for bin := ageBins - 2; bin >= 0; bin-- {
		first, end := starts[bin]>>stepBits[bin], l.ages.starts[bin]>>stepBits[bin]
		for step := first; step < min(end, first+ringSteps); step++ {
			if s := &l.cohorts[bin][step%ringSteps]; s.first > 0 {
				l.drain(s, uint8(bin), step<<stepBits[bin], learned)
			}
		}
	}
}

// drain moves all groups of a cohort, that of the step of a bin that begins with a tick.
func (l *leaves) drain(s *cohort, bin uint8, tick uint32, learned *hazards) {
	to := l.ages.bin(tick)
	from, step := stepOf(bin, tick), stepOf(to, tick)
	for i := s.first; i > 0; {
		g := l.groups.at(i - 1)
		number, wasEmpty := i-1, g.empty()
		if !wasEmpty {
			l.unlist(place{g.class, bin, from})
		}
		if l.rings[g.class][bin][from] = 0; g.weight > 0 {
			learned.pass(g.class, bin, to, g.weight)
			at := place{g.class, to, step}
			older := l.group(at)
			if older.empty() && !wasEmpty {
				l.list(at)
			}
			l.merge(older, g)
		}
		i = g.next
		l.groups.give(number)
	}
	s.first = 0
}

// merge makes a group a part of one whose blocks are all older.
func (l *leaves) merge(older, g *group) {
	older.weight += g.weight
	switch {
	case g.oldest == NoNode:
	case older.newest == NoNode:
		older.oldest, older.newest = g.oldest, g.newest
	default:
		l.at(older.newest).next, l.at(g.oldest).back = g.oldest, older.newest
		older.newest = g.newest
	}
	switch {
	case g.root == NoNode:
	case older.root == NoNode:
		older.root = g.root
	default:
		older.root = l.meld(older.root, g.root)
	}
}

// list notes that a group at a place is not empty any more, unlist that it is.
func (l *leaves) list(at place) {
	number := at.cell()
	c := &l.cells[number]
	c.listed |= 1 << at.step
	if at.class != unaged {
		if l.cohorts[at.bin][at.step].listed++; at.bin < l.fresh {
			return
		}
	}
	if c.at == none {
		l.show(number)
	}
}

func (l *leaves) unlist(at place) {
	number := at.cell()
	c := &l.cells[number]
	if c.listed &^= 1 << at.step; c.listed == 0 && c.at != none {
		l.hide(number)
	}
	if at.class != unaged {
		l.cohorts[at.bin][at.step].listed--
	}
}

// oldestOf is the oldest group of a cell that is not empty; there is one.
func (l *leaves) oldestOf(cell uint32) *group {
	if cell == 0 {
		return l.groups.at(0)
	}
	class, bin := uint16((cell-1)/ageBins), uint8((cell-1)%ageBins)
	first := stepOf(bin, l.ages.starts[bin])
	after := bits.TrailingZeros32(bits.RotateLeft32(l.cells[cell].listed, -int(first)))
	return l.group(place{class, bin, uint8((int(first) + after) % ringSteps)})
}
