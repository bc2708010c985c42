package policy

// leaves are the blocks of a tier that may leave, by what keeping them is worth. They lie in cells, those
// of a class and a bin of ages: the cells are a heap by worth, and each has its blocks in the order
// of their last use. Most come in that order, when they are used and as they age, and lie in
// a queue; those that come out of it, as when a child leaves, lie in a heap beside it. Both
// are three numbers in each block, so that nothing is allocated for a cell, and a
// block moves in O(1), or O(log n) out of turn.
//
// A block that gains a hold stays in its cell until it surfaces, or moves: most holds are
// short.
type leaves struct {
	known  *histories
	blocks slab[leaf] // by Node
	cells  []cell     // by cellOf
	order  []uint32   // heap of the cells that have blocks
	fresh  uint8      // bins that are fresh
}

// leaf is a block of the tier, and its place in the queue of its cell or in a pairing heap: a tree
// in which no block was used before its parent, with children in a list.
type leaf struct {
	history uint32 // its number + 1, 0 when the Node is free
	holds   uint32
	child   Node // the first, or queued
	next    Node // the next sibling, or the younger neighbour in the queue
	back    Node // the sibling before, the parent of a first child, the older neighbour in the queue, NoNode of a root and of the oldest, or outside
	size    coarse
	order   uint16 // of its last use among those of the same tick; saturates at mostOrder. With freshBit in the cell of a fresh bin
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

// outside is in place of a neighbour for a block that is in no cell.
const outside = NoNode - 1

// queued is in place of a child for a block in a queue.
const queued = NoNode - 2

// cell is leaves in the order of their last use.
type cell struct {
	worth          float32 // of its blocks; less leaves first
	at             uint32  // in order, none when it is empty
	oldest, newest Node    // of the queue
	root           Node    // of the heap
}

// emptyCell is a cell without leaves.
var emptyCell = cell{worth: -1, at: none, oldest: NoNode, newest: NoNode, root: NoNode}

// Blocks of the first bins leave last, the oldest first, and have cells of their own: they are of
// requests that are under way, which store one block after another. These are freshBins bins,
// which is a second, or less in a tier that turns over in a few seconds: one part in freshPart of
// that, or the first bin. A block stays in the cell into which it came until its bin changes.
const (
	freshBins = 5
	freshPart = 4
	fresh     = 1 << 20 // more than any block is worth

	freshBit  = 1 << 15
	mostOrder = freshBit - 1
)

// newLeaves returns leaves with the cells that are of no class.
func newLeaves(known *histories) leaves {
	l := leaves{known: known, fresh: freshBins}
	for number := range 1 + freshBins {
		l.cells = append(l.cells, emptyCell)
		if number > 0 {
			l.cells[number].worth = float32(fresh - number)
		}
	}
	return l
}

// cellOf is the number of a cell. Blocks without an age have the first one, and leave
// before all others.
func cellOf(class uint16, bin uint8) uint32 {
	if bin == unknownAge {
		return 0
	}
	return 1 + freshBins + uint32(class)*ageBins + uint32(bin)
}

// cell is the number of the cell of a block, which may be that of a fresh bin.
func (e *history) cell(isFresh bool) uint32 {
	if isFresh {
		return 1 + uint32(e.bin)
	}
	return cellOf(e.class, e.bin)
}

func (l *leaves) cellOf(n Node) uint32 { return l.historyOf(n).cell(l.isFresh(n)) }

// isFresh reports whether a block is in the cell of a fresh bin, or would be if nothing held it.
func (l *leaves) isFresh(n Node) bool {
	if l.at(n).back == outside {
		return l.historyOf(n).bin < l.fresh
	}
	return l.at(n).order&freshBit != 0
}

// turnsOver takes in that the tier turns over in so many ticks.
func (l *leaves) turnsOver(in uint32) {
	for l.fresh = 1; l.fresh < freshBins && binEnds[l.fresh] <= in/freshPart; {
		l.fresh++
	}
}

func (l *leaves) historyOf(n Node) *history { return l.known.at(l.blocks.at(uint32(n)).history - 1) }

func (l *leaves) at(n Node) *leaf { return l.blocks.at(uint32(n)) }

// has reports whether n is a block of the tier.
func (l *leaves) has(n Node) bool { return uint32(n) < l.blocks.made && l.at(n).history > 0 }

// add adds a block, in no cell yet.
func (l *leaves) add(history uint32, size int64) Node {
	n := Node(l.blocks.take())
	*l.at(n) = leaf{history: history + 1, size: coarseOf(size), child: NoNode, next: NoNode, back: outside}
	return n
}

// setWorth changes what blocks of a class are worth in each bin.
func (l *leaves) setWorth(class uint16, worth *[ageBins]float32) {
	for last := int(cellOf(class, ageBins-1)); len(l.cells) <= last; {
		l.cells = append(l.cells, emptyCell)
	}
	for bin := range ageBins {
		c, w := &l.cells[cellOf(class, uint8(bin))], worth[bin]
		if c.worth != w {
			c.worth = w
			if c.at != none {
				l.settle(c.at)
			}
		}
	}
}

// fetch reads the blocks of histories that are about to be moved. It does nothing between one and
// the next, so that the processor waits for all of them at once. What is read overwrites the list.
func (l *leaves) fetch(due []uint32) {
	for at, i := range due {
		if n := l.known.at(i).node; n != NoNode {
			due[at] = uint32(l.at(n).next)
		}
	}
}

// enter puts a block that is in no cell into its own, unless it is held.
func (l *leaves) enter(n Node) {
	b := l.at(n)
	if b.holds > 0 {
		return
	}
	e := l.known.at(b.history - 1)
	isFresh := e.bin < l.fresh
	if b.order &= mostOrder; isFresh {
		b.order |= freshBit
	}
	number := e.cell(isFresh)
	c := &l.cells[number]
	b.child, b.next, b.back = NoNode, NoNode, NoNode
	switch {
	case c.newest == NoNode:
		c.oldest, c.newest, b.child = n, n, queued
	case l.usedBefore(c.newest, n):
		l.at(c.newest).next = n
		b.child, b.back, c.newest = queued, c.newest, n
	case c.root == NoNode:
		c.root = n
	default:
		c.root = l.meld(c.root, n)
	}
	if c.at == none {
		l.show(number)
	}
}

// leave takes a block out of its cell, before its class, or its bin, changes. It reports whether it
// was in one.
func (l *leaves) leave(n Node) bool {
	b := l.at(n)
	if b.back == outside {
		return false
	}
	number := l.known.at(b.history - 1).cell(b.order&freshBit != 0)
	if c := &l.cells[number]; b.child == queued {
		l.unqueue(c, b)
	} else {
		l.unheap(c, n)
	}
	b.child, b.next, b.back = NoNode, NoNode, outside
	if c := &l.cells[number]; c.root == NoNode && c.oldest == NoNode {
		l.hide(number)
	}
	return true
}

// unqueue takes a block out of a queue.
func (l *leaves) unqueue(c *cell, b *leaf) {
	if b.back == NoNode {
		c.oldest = b.next
	} else {
		l.at(b.back).next = b.next
	}
	if b.next == NoNode {
		c.newest = b.back
	} else {
		l.at(b.next).back = b.back
	}
}

// unheap takes a block out of a heap.
func (l *leaves) unheap(c *cell, n Node) {
	rest := l.meldAll(l.at(n).child)
	switch {
	case c.root == n:
		c.root = rest
	case rest == NoNode:
		l.cut(n)
	default:
		l.cut(n)
		c.root = l.meld(c.root, rest)
	}
}

// first is the block that leaves first, in the cell that is worth least.
func (l *leaves) first() (Node, bool) {
	for len(l.order) > 0 {
		c := &l.cells[l.order[0]]
		n := c.oldest
		if n == NoNode || c.root != NoNode && l.usedBefore(c.root, n) {
			n = c.root
		}
		if l.at(n).holds == 0 {
			return n, true
		}
		l.leave(n)
	}
	return 0, false
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

// usedBefore is the order within a cell.
func (l *leaves) usedBefore(a, b Node) bool {
	x, y := l.lastUse(a), l.lastUse(b)
	return x < y || x == y && a < b
}

// lastUse is the tick of a block's last use, and its order in that.
func (l *leaves) lastUse(n Node) uint64 {
	b := l.at(n)
	return uint64(l.known.at(b.history-1).touched)<<16 | uint64(b.order&mostOrder)
}

// before is the order of cells. While nothing is learned none is worth anything, and the
// oldest blocks leave first.
func (l *leaves) before(a, b uint32) bool {
	if x, y := l.cells[a].worth, l.cells[b].worth; x != y {
		return x < y
	}
	x, y := (a-1-freshBins)%ageBins, (b-1-freshBins)%ageBins // those of no class are equal to none
	return x > y || x == y && a < b
}

// show enters a cell that has blocks into the order, hide takes an empty one out.
func (l *leaves) show(c uint32) {
	l.order = append(l.order, c)
	l.cells[c].at = uint32(len(l.order) - 1)
	l.settle(l.cells[c].at)
}

func (l *leaves) hide(c uint32) {
	at, last := l.cells[c].at, uint32(len(l.order)-1)
	l.cells[c].at = none
	moved := l.order[last]
	l.order = l.order[:last]
	if at != last {
		l.place(at, moved)
		l.settle(at)
	}
}

func (l *leaves) place(at, c uint32) {
	l.order[at] = c
	l.cells[c].at = at
}

// settle moves the cell at a place to where it belongs.
func (l *leaves) settle(at uint32) {
	c := l.order[at]
	for at > 0 && l.before(c, l.order[(at-1)/2]) {
		l.place(at, l.order[(at-1)/2])
		at = (at - 1) / 2
	}
	for {
		child := 2*at + 1
		if child >= uint32(len(l.order)) {
			break
		}
		if child+1 < uint32(len(l.order)) && l.before(l.order[child+1], l.order[child]) {
			child++
		}
		if !l.before(l.order[child], c) {
			break
		}
		l.place(at, l.order[child])
		at = child
	}
	l.place(at, c)
}
