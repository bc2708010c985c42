package policy

// none is the Node and the heap slot of nothing.
const none = ^uint32(0)

// ranking is what all policies of this package share: numbered blocks, each
// with a class and a stamp, and the order in which those without holds leave.
// A lower class leaves first; within a class the lower stamp does.
//
// Blocks live in one slab whose freed places are reused, so that a Node is a
// dense index and the steady state allocates nothing. Only blocks without
// holds can leave, so only they are kept in the heap. A block that gains a
// hold stays in the heap until it surfaces or is ranked anew: most holds are
// short, and such a block never moves.
type ranking struct {
	blocks []ranked
	free   []Node
	heap   []slot
	stamp  uint64 // of the last that was touched
	elder  uint64 // of the last that was old when it came
}

// ranked is one block of the slab.
type ranked struct {
	key   uint64 // class, then stamp
	holds uint32
	at    uint32 // index in the heap, none when it is not there
	live  bool
}

// slot is one place of the heap. The key is repeated here so that comparing
// neighbours does not reach into the slab.
type slot struct {
	key  uint64
	node Node
}

const stampBits = 63

// young is above the stamps of all that was old when it came.
const young = 1 << 62

// key orders blocks by class, then by stamp. 2⁶² stamps outlast any process.
func key(class, stamp uint64) uint64 { return class<<stampBits | stamp }

// class returns the class of a live block.
func (r *ranking) class(n Node) uint64 { return r.blocks[n].key >> stampBits }

// known reports whether n is a live block. Calls that name another Node do
// nothing: a policy gives advice, and bad bookkeeping of its caller must not
// bring the daemon down.
func (r *ranking) known(n Node) bool { return int(n) < len(r.blocks) && r.blocks[n].live }

// add makes a block of the given class, the youngest of all or the youngest of
// the old.
func (r *ranking) add(class uint64, old bool) Node {
	n := Node(len(r.blocks))
	if last := len(r.free) - 1; last >= 0 {
		n, r.free = r.free[last], r.free[:last]
	} else {
		r.blocks = append(r.blocks, ranked{})
	}
	r.blocks[n] = ranked{live: true, at: none}
	if old {
		r.elder++
		r.rank(n, key(class, r.elder))
	} else {
		r.touch(n, class)
	}
	return n
}

// drop forgets a live block and frees its Node.
func (r *ranking) drop(n Node) {
	r.leave(n)
	r.blocks[n] = ranked{at: none}
	r.free = append(r.free, n)
}

// touch makes a live block the youngest of a class.
func (r *ranking) touch(n Node, class uint64) {
	r.stamp++
	r.rank(n, key(class, young+r.stamp))
}

// reclass moves a live block to a class without making it younger.
func (r *ranking) reclass(n Node, class uint64) {
	const stamps = 1<<stampBits - 1
	r.rank(n, key(class, r.blocks[n].key&stamps))
}

// rank gives a live block its key. A held block leaves the heap here and not
// only when it surfaces, or one call of Victim might have to clear away every
// inner block of every chain.
func (r *ranking) rank(n Node, key uint64) {
	b := &r.blocks[n]
	b.key = key
	switch {
	case b.holds > 0:
		r.leave(n)
	case b.at == none:
		r.enter(n)
	default:
		r.heap[b.at].key = key
		r.fix(b.at)
	}
}

// Hold adds a reason for n to stay.
func (r *ranking) Hold(n Node) {
	if r.known(n) {
		r.blocks[n].holds++
	}
}

// Release takes one reason away. More releases than holds do nothing.
func (r *ranking) Release(n Node) {
	if !r.known(n) || r.blocks[n].holds == 0 {
		return
	}
	b := &r.blocks[n]
	b.holds--
	if b.holds == 0 && b.at == none {
		r.enter(n)
	}
}

// Victim returns the hold-free block that leaves next, O(log n) for each block
// that was held since it was last ranked and is in the way.
func (r *ranking) Victim() (Node, bool) {
	for len(r.heap) > 0 {
		n := r.heap[0].node
		if r.blocks[n].holds == 0 {
			return n, true
		}
		r.leave(n)
	}
	return 0, false
}

// Len is the number of blocks known.
func (r *ranking) Len() int { return len(r.blocks) - len(r.free) }
