package policy

import "time"

// none is the Node and the heap slot of nothing.
const none = ^uint32(0)

// Ranking is what policies embed: numbered blocks, each with a class, 0 or 1, and a
// stamp, and the order in which those without holds leave. A lower class leaves
// first; within a class the block that was touched longest ago does. It implements
// Policy but for Name, Insert, Remove, Update and Access. The zero value is empty.
//
// Blocks live in one slab whose freed places are reused, so that a Node is a
// dense index and the steady state allocates nothing. Only blocks without
// holds can leave, so only they are kept in the heap. A block that gains a
// hold stays in the heap until it surfaces or is ranked anew: most holds are
// short, and such a block never moves.
type Ranking struct {
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

// Class returns the class of a live block.
func (r *Ranking) Class(n Node) uint64 { return r.blocks[n].key >> stampBits }

// Known reports whether n is a live block. Calls that name another Node do
// nothing: a policy gives advice, and bad bookkeeping of its caller must not
// bring the daemon down.
func (r *Ranking) Known(n Node) bool { return int(n) < len(r.blocks) && r.blocks[n].live }

// Add makes a block of the given class, the youngest of all or the youngest of
// the old.
func (r *Ranking) Add(class uint64, old bool) Node {
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
		r.Touch(n, class)
	}
	return n
}

// Drop forgets a live block and frees its Node.
func (r *Ranking) Drop(n Node) {
	r.leave(n)
	r.blocks[n] = ranked{at: none}
	r.free = append(r.free, n)
}

// Touch makes a live block the youngest of a class.
func (r *Ranking) Touch(n Node, class uint64) {
	r.stamp++
	r.rank(n, key(class, young+r.stamp))
}

// Reclass moves a live block to a class without making it younger.
func (r *Ranking) Reclass(n Node, class uint64) {
	const stamps = 1<<stampBits - 1
	r.rank(n, key(class, r.blocks[n].key&stamps))
}

// rank gives a live block its key. A held block leaves the heap here and not
// only when it surfaces, or one call of Victim might have to clear away every
// inner block of every chain.
func (r *Ranking) rank(n Node, key uint64) {
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
func (r *Ranking) Hold(n Node) {
	if r.Known(n) {
		r.blocks[n].holds++
	}
}

// Release takes one reason away. More releases than holds do nothing.
func (r *Ranking) Release(n Node) {
	if !r.Known(n) || r.blocks[n].holds == 0 {
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
func (r *Ranking) Victim() (Node, bool) {
	for len(r.heap) > 0 {
		n := r.heap[0].node
		if r.blocks[n].holds == 0 {
			return n, true
		}
		r.leave(n)
	}
	return 0, false
}

// Admit admits every block.
func (*Ranking) Admit(time.Duration, Meta) bool { return true }

// Demotion is that of CASCADE Algorithm 1.
func (*Ranking) Demotion(m Meta) Demotion { return DemotionOf(m) }

// Len is the number of blocks known.
func (r *Ranking) Len() int { return len(r.blocks) - len(r.free) }
