package simulate

import (
	"fmt"

	"cascadekv/cascade/policy"
)

// Level is one level of a ladder.
type Level struct {
	Policy string // a word of Policies
	Blocks int    // its room; a level without room is left out
}

// ladder drives a policy on each of several levels as the store does. A request is served
// from the fastest level that has a block; what came from below, and is admitted, enters the
// fastest level, as does what was missing. A victim goes to the next level that can take it,
// unless that has it already. A block with a child in its level or a faster one is no
// victim, so chains have no holes. It is not safe for concurrent use.
type ladder struct {
	levels  []*level // fastest first
	parents []uint32 // by number of the block: that of the one before it when it was first asked for + 1; 0 of a head
	depths  []uint32 // by number: blocks before it then
	found   []found
}

// level is what a level has.
type level struct {
	policy   policy.Policy
	index    int // among those of the ladder, without room included
	capacity int
	count    int           // blocks
	nodes    []policy.Node // by number of the block; NoNode when it is not here
	numbers  []uint32      // by node
	children []uint32      // by number: how often its children are here and in faster levels
	request  policy.Request
	held     []policy.Node // by the request

	hits    int64 // references served from here
	entered int64 // blocks written to here
}

// newLadder returns empty levels for blocks of which there are so many distinct ones.
func newLadder(levels []Level, unique int) (*ladder, error) {
	l := &ladder{}
	for i, one := range levels {
		if one.Blocks <= 0 {
			continue
		}
		p, err := policy.New(one.Policy, int64(one.Blocks)*blockBytes)
		if err != nil {
			return nil, fmt.Errorf("simulate: %w", err)
		}
		lv := &level{policy: p, index: i, capacity: one.Blocks, nodes: make([]policy.Node, unique), children: make([]uint32, unique)}
		for b := range lv.nodes {
			lv.nodes[b] = policy.NoNode
		}
		l.levels = append(l.levels, lv)
	}
	return l, nil
}

func (l *ladder) head() []found { return l.found }

func (l *ladder) serve(r *request) (hits int) {
	l.meet(r)
	hits = l.find(r)
	for _, lv := range l.levels {
		lv.request = r.asked(lv.request.Chain)
		for _, b := range r.blocks {
			lv.request.Chain = append(lv.request.Chain, ref(b, lv.nodes[b]))
		}
		lv.policy.Access(&lv.request)
	}
	if len(l.levels) > 0 && (hits < len(r.blocks) || len(l.found) > 1 || hits > 0 && l.found[0].level != l.levels[0].index) {
		l.holdFound(r)
		l.store(r, hits)
		l.release()
	}
	return hits
}

// meet has the parents of blocks that are asked for for the first time; they are numbered in that order.
func (l *ladder) meet(r *request) {
	for i, b := range r.blocks {
		if int(b) < len(l.parents) {
			continue
		}
		parent := uint32(0)
		if i > 0 {
			parent = r.blocks[i-1] + 1
		}
		l.parents, l.depths = append(l.parents, parent), append(l.depths, uint32(i))
	}
}

// find finds where the blocks of a request are, up to the first that is nowhere.
func (l *ladder) find(r *request) (hits int) {
	l.found = l.found[:0]
	for _, b := range r.blocks {
		lv := l.fastest(b)
		if lv == nil {
			break
		}
		hits++
		lv.hits++
		if last := len(l.found) - 1; last >= 0 && l.found[last].level == lv.index {
			l.found[last].blocks++
		} else {
			l.found = append(l.found, found{lv.index, 1})
		}
	}
	return hits
}

// fastest is the fastest level that has a block, nil if none has.
func (l *ladder) fastest(b uint32) *level {
	for _, lv := range l.levels {
		if lv.nodes[b] != policy.NoNode {
			return lv
		}
	}
	return nil
}

// holdFound holds what the request has found where it was found.
func (l *ladder) holdFound(r *request) {
	for _, b := range r.blocks {
		lv := l.fastest(b)
		if lv == nil {
			break
		}
		lv.hold(lv.nodes[b])
	}
}

func (lv *level) hold(n policy.Node) {
	lv.policy.Hold(n)
	lv.held = append(lv.held, n)
}

func (l *ladder) release() {
	for _, lv := range l.levels {
		for _, n := range lv.held {
			lv.policy.Release(n)
		}
		lv.held = lv.held[:0]
	}
}

// store has what was found below enter the fastest level, as far as it is admitted, and what
// was missing the fastest level that can take it: a request may be longer than a level.
func (l *ladder) store(r *request, hits int) {
	for _, lv := range l.levels {
		lv.request = policy.Request{Now: r.at, Chain: lv.request.Chain[:0], Tokens: r.tokens}
	}
	for _, b := range r.blocks[:hits] {
		if l.levels[0].nodes[b] != policy.NoNode {
			continue
		}
		if !l.takes(0, b, true, r) {
			break
		}
		l.add(0, b, r)
	}
	at := 0
	for _, b := range r.blocks[hits:] {
		for at < len(l.levels) && l.levels[at].nodes[b] == policy.NoNode && !l.takes(at, b, false, r) {
			at++
		}
		if at == len(l.levels) {
			break
		}
		l.add(at, b, r)
	}
	for _, lv := range l.levels {
		if len(lv.request.Chain) > 0 {
			lv.policy.Access(&lv.request)
		}
	}
}

// takes reports whether a block may enter a level, and makes room for it if so.
func (l *ladder) takes(at int, b uint32, elsewhere bool, r *request) bool {
	lv := l.levels[at]
	if lv.count < lv.capacity {
		return true
	}
	m := l.meta(b)
	m.Elsewhere = elsewhere
	return lv.policy.Admit(r.at, m) && l.room(at, r)
}

// add adds a block to what the request stores in a level; it may be there already, if the trace
// has it behind another block too.
func (l *ladder) add(at int, b uint32, r *request) {
	lv := l.levels[at]
	if lv.nodes[b] == policy.NoNode {
		l.enter(at, b, r)
	}
	lv.hold(lv.nodes[b])
	lv.request.Chain = append(lv.request.Chain, ref(b, lv.nodes[b]))
}

func (l *ladder) meta(b uint32) policy.Meta {
	return policy.Meta{Fingerprint: scramble(uint64(b)), Size: blockBytes, Depth: l.depths[b], Refs: 1}
}

// room evicts from a level until one more block fits; false when all that is there is held.
func (l *ladder) room(at int, r *request) bool {
	lv := l.levels[at]
	for lv.count >= lv.capacity {
		n, ok := lv.policy.Victim()
		if !ok {
			return false
		}
		b := lv.numbers[n] // it is here until it is below, so that its parent stays
		for next := at + 1; next < len(l.levels) && l.levels[next].nodes[b] == policy.NoNode; next++ {
			if l.room(next, r) {
				l.enter(next, b, r)
				break
			}
		}
		l.leave(at, b)
	}
	return true
}

// enter adds a block to a level.
func (l *ladder) enter(at int, b uint32, r *request) {
	lv := l.levels[at]
	n := lv.policy.Insert(r.at, l.meta(b))
	for int(n) >= len(lv.numbers) {
		lv.numbers = append(lv.numbers, 0)
	}
	lv.numbers[n], lv.nodes[b] = b, n
	lv.count++
	lv.entered++
	for range lv.children[b] {
		lv.policy.Hold(n)
	}
	l.stay(at, b, policy.Policy.Hold, 1)
}

// leave takes a block out of a level.
func (l *ladder) leave(at int, b uint32) {
	lv := l.levels[at]
	lv.policy.Remove(lv.nodes[b], true)
	lv.nodes[b] = policy.NoNode
	lv.count--
	l.stay(at, b, policy.Policy.Release, ^uint32(0))
}

// stay changes the holds that a block in a level has on its parent, here and below, by one.
func (l *ladder) stay(at int, b uint32, change func(policy.Policy, policy.Node), by uint32) {
	parent := l.parents[b]
	if parent == 0 || parent == b+1 {
		return
	}
	for _, lv := range l.levels[at:] {
		lv.children[parent-1] += by
		if n := lv.nodes[parent-1]; n != policy.NoNode {
			change(lv.policy, n)
		}
	}
}
