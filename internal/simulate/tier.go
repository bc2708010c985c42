package simulate

import (
	"cascadekv/cascade/policy"
)

// blockBytes is the size of all blocks for the policies, in bytes: that of 16 tokens of a
// small model.
const blockBytes = 256 << 10

// simulated is a tier that serves requests.
type simulated interface {
	// serve serves a request and returns how many blocks of it were hits. Requests come in
	// the order of their times.
	serve(r *request) (hits int)

	// head returns where the hits of the request that was served last were, in the
	// order of the prompt. It is the callee's until the next.
	head() []found
}

// tier drives a policy as the store does: children hold their parents, a request holds
// what it has found, and is a get of all its blocks and then a put of those that were
// missing. It is not safe for concurrent use.
type tier struct {
	policy   policy.Policy
	capacity int
	count    int           // blocks in the tier
	nodes    []policy.Node // by number of the block; NoNode when it is not in the tier
	blocks   []resident    // by node
	request  policy.Request
	chain    []policy.Node // found or inserted by the request, head first
	held     []policy.Node // by the request
	single
}

// single is where the hits of a request were, when there is one tier.
type single [1]found

func (s *single) head() []found { return s[:] }

func (s *single) hit(blocks int) int {
	s[0].blocks = blocks
	return blocks
}

// resident is a block of the tier.
type resident struct {
	number uint32
	parent policy.Node // NoNode of a head
}

// newTier returns an empty tier with room for so many blocks, at least one, of unique that
// there are, for a policy that is new.
func newTier(p policy.Policy, capacity, unique int) *tier {
	t := &tier{policy: p, capacity: max(capacity, 1), nodes: make([]policy.Node, unique)}
	for i := range t.nodes {
		t.nodes[i] = policy.NoNode
	}
	return t
}

func (t *tier) serve(r *request) (hits int) {
	t.request = r.asked(t.request.Chain)
	t.chain = t.chain[:0]
	for i, b := range r.blocks {
		n := t.nodes[b]
		if n != policy.NoNode && hits == i {
			hits++
			t.chain = append(t.chain, n)
		}
		t.request.Chain = append(t.request.Chain, ref(b, n))
	}
	t.policy.Access(&t.request)
	if hits < len(r.blocks) {
		t.put(r, hits)
	}
	return t.hit(hits)
}

// asked is the request for all blocks, as a policy gets it, without the blocks: chain has room for them.
func (r *request) asked(chain []policy.Ref) policy.Request {
	return policy.Request{
		Now: r.at, Hits: len(r.blocks), Chain: chain[:0], Tokens: r.tokens, Shared: r.shared, Due: r.pause,
	}
}

func ref(number uint32, n policy.Node) policy.Ref {
	return policy.Ref{Fingerprint: scramble(uint64(number)), Size: blockBytes, Node: n}
}

// put stores what comes after the hits as far as the policy admits it and there is room.
func (t *tier) put(r *request, hits int) {
	t.holdChain()
	t.request = policy.Request{Now: r.at, Chain: t.request.Chain[:0], Tokens: r.tokens}
	for i, b := range r.blocks[hits:] {
		n := t.nodes[b]
		if n == policy.NoNode {
			m := policy.Meta{Fingerprint: scramble(uint64(b)), Size: blockBytes, Depth: uint32(hits + i), Refs: 1, Elsewhere: true} // with the engine, which can compute it
			if t.count >= t.capacity && (!t.policy.Admit(r.at, m) || !t.room()) {
				break
			}
			n = t.insert(r, m, b)
		} // else the trace has it behind another block too
		t.hold(n)
		t.chain = append(t.chain, n)
		t.request.Chain = append(t.request.Chain, ref(b, n))
	}
	if len(t.request.Chain) > 0 {
		t.policy.Access(&t.request)
	}
	for _, n := range t.held {
		t.policy.Release(n)
	}
	t.held = t.held[:0]
}

// holdChain holds what the request has found, but for what its child in the chain holds.
func (t *tier) holdChain() {
	for i, n := range t.chain {
		if i+1 == len(t.chain) || t.blocks[t.chain[i+1]].parent != n {
			t.hold(n)
		}
	}
}

func (t *tier) hold(n policy.Node) {
	t.policy.Hold(n)
	t.held = append(t.held, n)
}

// insert adds a block behind the chain.
func (t *tier) insert(r *request, m policy.Meta, number uint32) policy.Node {
	n := t.policy.Insert(r.at, m)
	for int(n) >= len(t.blocks) {
		t.blocks = append(t.blocks, resident{})
	}
	t.blocks[n] = resident{number: number, parent: policy.NoNode}
	if last := len(t.chain) - 1; last >= 0 {
		t.blocks[n].parent = t.chain[last]
		t.policy.Hold(t.chain[last])
	}
	t.nodes[number] = n
	t.count++
	return n
}

// room evicts until one more block fits; false when all that is there is held.
func (t *tier) room() bool {
	for t.count >= t.capacity {
		n, ok := t.policy.Victim()
		if !ok {
			return false
		}
		gone := t.blocks[n]
		t.policy.Remove(n, true)
		t.nodes[gone.number] = policy.NoNode
		t.count--
		if gone.parent != policy.NoNode {
			t.policy.Release(gone.parent)
		}
	}
	return true
}
