package policy

// leaves are the blocks of a tier, and those that may leave by what keeping them is worth. They lie in groups, and these in cells, those
// of a class and a bin of ages: the cells are a heap by worth. A block's place in its group is three numbers in itself, so that
// nothing is allocated for it, and it comes and goes in O(1), or O(log n) out of turn.
//
// A block that gains a hold stays where it is until it surfaces, or is used: most holds are short. One that was used lately does
// not, for that is mostly held by a child, and for long.
type leaves struct {
	blocks  slab[leaf]   // by Node
	prints  slab[uint64] // fingerprints, by Node
	ages    ages
	groups  slab[group]                // the first is that of blocks without an age
	rings   []*[ageBins]ring           // by class
	cohorts [ageBins][ringSteps]cohort // by bin and step
	cells   []cell                     // by number
	order   slots                      // heap of the cells that have blocks, but for fresh ones
	fresh   uint8                      // bins that are fresh
}

// leaf is a block of the tier, and its place in the queue of its group or in a pairing heap: a tree in which no block was used before
// its parent, with children in a list. It is half a line of the processor's caches, so that a block is one read.
type leaf struct {
	history
	holds uint32
	child Node // the first, or queued
	next  Node // the next sibling, or the younger neighbour in the queue
	back  Node // the sibling before, the parent of a first child, the older neighbour in the queue, NoNode of a root and of the oldest, or outside
	size  coarse
	order uint16 // of its last use among those of the same tick; saturates
}

// coarse is a number of bytes, rounded down by less than one part in a thousand: eleven bits and
// an exponent. Down, so that a block for which the tier has made room is never one that a full
// tier might refuse.
type coarse uint16

func coarseOf(size int64) coarse {
	size = max(size, 0)
	exponent := 0
	for ; size >= 1<<11 && exponent < 31; exponent++ {
		size /= 2
	}
	return coarse(min(size, 1<<11-1)<<5 | int64(exponent))
}

func (c coarse) bytes() int64 { return int64(c>>5) << (c & 31) }

// outside is in place of a neighbour for a block that is in no group.
const outside = NoNode - 1

// queued is in place of a child for a block in a queue.
const queued = NoNode - 2

// newLeaves returns leaves with the cell that is of no class.
func newLeaves() leaves {
	l := leaves{fresh: freshBins, cells: []cell{{at: none}}}
	*l.groups.at(l.groups.take()) = noGroup
	return l
}

// isFresh reports whether a block leaves after all that are older than the fresh bins.
func (l *leaves) isFresh(e *history) bool {
	return e.class != unaged && l.ages.bin(e.touched) < l.fresh
}

func (l *leaves) at(n Node) *leaf { return l.blocks.at(uint32(n)) }

// has reports whether n is a block of the tier.
func (l *leaves) has(n Node) bool { return uint32(n) < l.blocks.made && l.at(n).resident }

// add adds a block, in no group yet.
func (l *leaves) add(print uint64, size int64) Node {
	n := l.blocks.take()
	if n == l.prints.made {
		l.prints.take()
	}
	*l.prints.at(n) = print
	*l.blocks.at(n) = leaf{history: history{class: unaged}, size: coarseOf(size), child: NoNode, next: NoNode, back: outside}
	return Node(n)
}

// enter puts a block that is in no list into that of its group, unless it is held.
func (l *leaves) enter(n Node) {
	at := l.placeOf(&l.at(n).history)
	l.enterGroup(n, l.group(at), at)
}

func (l *leaves) enterGroup(n Node, g *group, at place) {
	b := l.at(n)
	if b.holds > 0 {
		return
	}
	wasEmpty := g.empty()
	b.child, b.next, b.back = NoNode, NoNode, NoNode
	switch {
	case g.newest == NoNode:
		g.oldest, g.newest, b.child = n, n, queued
	case l.usedBefore(g.newest, n):
		l.at(g.newest).next = n
		b.child, b.back, g.newest = queued, g.newest, n
	case g.root == NoNode:
		g.root = n
	default:
		g.root = l.meld(g.root, n)
	}
	if wasEmpty {
		l.list(at)
	}
}

// leave takes a block out of the list of its group, if it is there.
func (l *leaves) leave(n Node) {
	at := l.placeOf(&l.at(n).history)
	l.leaveGroup(n, l.group(at), at)
}

func (l *leaves) leaveGroup(n Node, g *group, at place) {
	b := l.at(n)
	if b.back == outside {
		return
	}
	if b.child == queued {
		l.unqueue(g, b)
	} else {
		l.unheap(g, n)
	}
	b.child, b.next, b.back = NoNode, NoNode, outside
	if g.empty() {
		l.unlist(at)
	}
}

// unqueue takes a block out of a queue.
func (l *leaves) unqueue(g *group, b *leaf) {
	if b.back == NoNode {
		g.oldest = b.next
	} else {
		l.at(b.back).next = b.next
	}
	if b.next == NoNode {
		g.newest = b.back
	} else {
		l.at(b.next).back = b.back
	}
}

// unheap takes a block out of a heap.
func (l *leaves) unheap(g *group, n Node) {
	rest := l.meldAll(l.at(n).child)
	switch {
	case g.root == n:
		g.root = rest
	case rest == NoNode:
		l.cut(n)
	default:
		l.cut(n)
		g.root = l.meld(g.root, rest)
	}
}

// first is the block that leaves first, in the cell that is worth least.
func (l *leaves) first() (Node, bool) {
	for len(l.order) > 0 {
		n := l.firstOf(l.oldestOf(uint32(l.order[0].node)))
		if l.at(n).holds == 0 {
			return n, true
		}
		l.leave(n)
	}
	return l.firstFresh()
}

// firstOf is the block of a group that leaves first; there is one.
func (l *leaves) firstOf(g *group) Node {
	if g.oldest == NoNode || g.root != NoNode && l.usedBefore(g.root, g.oldest) {
		return g.root
	}
	return g.oldest
}

// firstFresh is the block of the fresh bins that leaves first, of whatever class.
func (l *leaves) firstFresh() (Node, bool) {
	for bin := int(l.fresh) - 1; bin >= 0; bin-- {
		step := l.ages.starts[bin] >> stepBits[bin]
		for range ringSteps {
			for s := &l.cohorts[bin][step%ringSteps]; s.listed > 0; {
				n := l.firstIn(s)
				if l.at(n).holds == 0 {
					return n, true
				}
				l.leave(n)
			}
			step++
		}
	}
	return 0, false
}

// firstIn is the block of a cohort's groups that was used first; there is one.
func (l *leaves) firstIn(s *cohort) Node {
	first := NoNode
	for i := s.first; i > 0; {
		g := l.groups.at(i - 1)
		if i = g.next; g.empty() {
			continue
		}
		if n := l.firstOf(g); first == NoNode || l.usedBefore(n, first) {
			first = n
		}
	}
	return first
}

// cut takes a block, with what is below it, from its parent.
func (l *leaves) cut(n Node) {
	b := l.at(n)
	if before := l.at(b.back); before.child == n {
		before.child = b.next
	} else {
		before.next = b.next
	}
	if b.next != NoNode {
		l.at(b.next).back = b.back
	}
	b.next, b.back = NoNode, NoNode
}

// meld joins two heaps by their roots and returns the root of both.
func (l *leaves) meld(a, b Node) Node {
	if l.usedBefore(b, a) {
		a, b = b, a
	}
	top, below := l.at(a), l.at(b)
	below.next, below.back = top.child, a
	if top.child != NoNode {
		l.at(top.child).back = b
	}
	top.child, top.next, top.back = b, NoNode, NoNode
	return a
}

// meldAll joins siblings, in pairs and then all pairs, and returns the root.
func (l *leaves) meldAll(first Node) Node {
	pairs := NoNode // linked by next, the last pair first
	for first != NoNode {
		a := first
		b := l.at(a).next
		first = NoNode
		l.at(a).next, l.at(a).back = NoNode, NoNode
		if b != NoNode {
			first = l.at(b).next
			l.at(b).next, l.at(b).back = NoNode, NoNode
			a = l.meld(a, b)
		}
		l.at(a).next = pairs
		pairs = a
	}
	root := NoNode
	for pairs != NoNode {
		next := l.at(pairs).next
		l.at(pairs).next = NoNode
		if root == NoNode {
			root = pairs
		} else {
			root = l.meld(root, pairs)
		}
		pairs = next
	}
	return root
}

// usedBefore is the order within a group.
func (l *leaves) usedBefore(a, b Node) bool {
	x, y := l.lastUse(a), l.lastUse(b)
	return x < y || x == y && a < b
}

// lastUse is the tick of a block's last use, and its order in that.
func (l *leaves) lastUse(n Node) uint64 {
	b := l.at(n)
	return uint64(b.touched)<<16 | uint64(b.order)
}
