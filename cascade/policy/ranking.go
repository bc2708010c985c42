package policy

import "time"

// none is the number of no element.
const none = ^uint32(0)

// Classes is how many classes a Ranking has.
const Classes = 3

// Ranking is what policies embed: numbered blocks, each in a class, and the order in which
// those of a class without holds leave: the one that was touched longest ago first. It
// implements Policy but for Name, Insert, Update and Access: the victim is the first of the
// lowest class that has any, and the classes' bytes are counted. The zero value is empty.
//
// Blocks live in one slab whose freed places are reused, so that a Node is a
// dense index and the steady state allocates nothing. Only blocks without
// holds can leave, so only they are kept in the heaps. A block that gains a
// hold stays in its heap until it surfaces or is ranked anew: most holds are
// short, and such a block never moves. One that loses its last hold is where it was.
type Ranking struct {
	blocks slab[ranked]
	heaps  [Classes]slots
	bytes  [Classes]int64
	stamp  uint64 // of the last that was touched
	elder  uint64 // of the last that was old when it came
}

// ranked is one block of the slab.
type ranked struct {
	key   uint64 // less leaves first
	print uint64 // its fingerprint
	holds uint32
	at    uint32 // index in the heap, none when it is not there
	size  uint32 // bytes; saturates
	class uint8
	uses  uint8 // as the policy counts them
	live  bool
}

// young is above the keys of all that was old when it came. 2⁶² stamps outlast any process.
const young = 1 << 62

func (r *Ranking) at(n Node) *ranked { return r.blocks.at(uint32(n)) }

// Known reports whether n is a live block. Calls that name another Node do
// nothing: a policy gives advice, and bad bookkeeping of its caller must not
// bring the daemon down.
func (r *Ranking) Known(n Node) bool { return uint32(n) < r.blocks.made && r.at(n).live }

// Add makes a block of a class, the youngest there; one that is old is of the lowest class,
// and leaves before all that are not.
func (r *Ranking) Add(class int, m Meta) Node {
	n := Node(r.blocks.take())
	*r.at(n) = ranked{live: true, at: none, print: m.Fingerprint, size: saturate32(m.Size)}
	r.bytes[0] += int64(r.at(n).size)
	if m.Old {
		r.elder++
		r.rank(n, 0, r.elder)
	} else {
		r.Touch(n, class)
	}
	return n
}

// Remove implements Policy.
func (r *Ranking) Remove(n Node, _ bool) {
	if r.Known(n) {
		r.Drop(n)
	}
}

// Drop forgets a live block and frees its Node.
func (r *Ranking) Drop(n Node) {
	r.leave(n)
	r.bytes[r.at(n).class] -= int64(r.at(n).size)
	r.blocks.give(uint32(n))
}

// Touch makes a live block the youngest of a class.
func (r *Ranking) Touch(n Node, class int) {
	r.stamp++
	r.rank(n, class, young+r.stamp)
}

// Reclass moves a live block to a class without making it younger.
func (r *Ranking) Reclass(n Node, class int) { r.rank(n, class, r.at(n).key) }

// Class returns the class of a live block.
func (r *Ranking) Class(n Node) int { return int(r.at(n).class) }

// rank gives a live block its class and key. A held block leaves the heap here and not
// only when it surfaces, or one call of Victim might have to clear away every
// inner block of every chain.
func (r *Ranking) rank(n Node, class int, key uint64) {
	b := r.at(n)
	if b.holds > 0 || int(b.class) != class {
		r.leave(n)
	}
	r.bytes[b.class] -= int64(b.size)
	r.bytes[class] += int64(b.size)
	b.class, b.key = uint8(class), key
	switch {
	case b.holds > 0:
	case b.at == none:
		r.enter(n)
	default:
		r.heaps[class][b.at].key = key
		r.heaps[class].fix(b.at, r.noted)
	}
}

// enter puts a block into the heap of its class under its key.
func (r *Ranking) enter(n Node) { r.heaps[r.at(n).class].push(slot{r.at(n).key, n}, r.noted) }

// leave takes a block out of its heap; it does nothing for one that is not
// there.
func (r *Ranking) leave(n Node) {
	if b := r.at(n); b.at != none {
		r.heaps[b.class].drop(b.at, r.noted)
		b.at = none
	}
}

// noted records in a block where it is in its heap.
func (r *Ranking) noted(n Node, at uint32) { r.at(n).at = at }

// Hold adds a reason for n to stay.
func (r *Ranking) Hold(n Node) {
	if r.Known(n) {
		r.at(n).holds++
	}
}

// Release takes one reason away. More releases than holds do nothing.
func (r *Ranking) Release(n Node) {
	if !r.Known(n) || r.at(n).holds == 0 {
		return
	}
	b := r.at(n)
	b.holds--
	if b.holds == 0 && b.at == none {
		r.enter(n)
	}
}

// Victim returns the hold-free block that leaves next, O(log n) for each block
// that was held since it was last ranked and is in the way.
func (r *Ranking) Victim() (Node, bool) {
	for class := range r.heaps {
		if n, ok := r.first(class); ok {
			return n, true
		}
	}
	return 0, false
}

// first is the hold-free block of a class that leaves first.
func (r *Ranking) first(class int) (Node, bool) {
	for len(r.heaps[class]) > 0 {
		n := r.heaps[class][0].node
		if r.at(n).holds == 0 {
			return n, true
		}
		r.leave(n)
	}
	return 0, false
}

// either is the first of a class, or if there is none, of another one.
func (r *Ranking) either(class, other int) (Node, bool) {
	if n, ok := r.first(class); ok {
		return n, true
	}
	return r.first(other)
}

// old reports whether a live block was old when it came, and has not been touched since.
func (r *Ranking) old(n Node) bool { return r.at(n).key < young }

// eldest is the first of the blocks that are old, if there is one without holds.
func (r *Ranking) eldest() (Node, bool) {
	n, ok := r.first(0)
	return n, ok && r.old(n)
}

// use counts a use of a live block, most at most.
func (r *Ranking) use(n Node, most uint8) {
	b := r.at(n)
	b.uses = min(b.uses, most-1) + 1
}

// Update implements Policy for those to whom nothing in Meta matters.
func (*Ranking) Update(Node, Meta) {}

// Admit admits every block.
func (*Ranking) Admit(time.Duration, Meta) bool { return true }

// Demotion implements Policy: memory that is there costs less than a write to files and a read back.
func (*Ranking) Demotion(Meta) Demotion { return ToNext }

// Len is the number of blocks known.
func (r *Ranking) Len() int { return r.blocks.len() }

// total is the bytes of all blocks.
func (r *Ranking) total() int64 {
	var all int64
	for _, bytes := range r.bytes {
		all += bytes
	}
	return all
}
