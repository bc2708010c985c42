package simulate

// minimum is a tier under MIN, which is optimal where numbers stand for prefixes: a block is
// then asked for whenever a child of it is, so that of all blocks one that is
// farthest from its next use is a leaf. It is not safe for concurrent use.
type minimum struct {
	capacity int
	places   []uint32 // by number of the block, its place in blocks + 1; 0 when it is not in the tier
	blocks   []kept
	free     []uint32 // places
	leaves   []uint32 // heap of places, the one that is used last at its root
	chain    []uint32 // places of the request's blocks
	single
}

// kept is a block of the tier.
type kept struct {
	number   uint32
	next     uint32 // request that asks for it
	parent   uint32 // its place + 1; 0 of a head
	children uint32
	leaf     uint32 // its place in leaves + 1; 0 when it is not there
	held     bool
}

// newMinimum returns an empty tier with room for so many blocks, at least one, of unique
// that there are.
func newMinimum(capacity, unique int) *minimum {
	return &minimum{capacity: max(capacity, 1), places: make([]uint32, unique)}
}

func (m *minimum) serve(r *request) (hits int) {
	m.chain = m.chain[:0]
	for i, b := range r.blocks {
		if m.places[b] == 0 {
			break
		}
		m.take(m.places[b]-1, r.next[i])
	}
	hits = len(m.chain)
	for i, b := range r.blocks[hits:] {
		at := m.places[b] - 1
		if m.places[b] == 0 {
			if !m.room(r.next[hits+i]) {
				break
			}
			at = m.insert(b)
		} // else the trace has it behind another block too
		m.take(at, r.next[hits+i])
	}
	for _, at := range m.chain {
		m.blocks[at].held = false
		m.sync(at)
	}
	return m.hit(hits)
}

// take adds a block to the chain, which holds it.
func (m *minimum) take(at, next uint32) {
	m.blocks[at].next, m.blocks[at].held = next, true
	m.chain = append(m.chain, at)
	m.sync(at)
}

// room reports whether a block that is next used then has room: not if all leaves are
// used before.
func (m *minimum) room(next uint32) bool {
	if len(m.blocks)-len(m.free) < m.capacity {
		return true
	}
	if len(m.leaves) == 0 || next == never || m.blocks[m.leaves[0]].next <= next {
		return false
	}
	at := m.leaves[0]
	gone := m.blocks[at]
	m.leave(at)
	m.places[gone.number] = 0
	m.free = append(m.free, at)
	if gone.parent != 0 {
		m.blocks[gone.parent-1].children--
		m.sync(gone.parent - 1)
	}
	return true
}

// insert adds a block behind the chain.
func (m *minimum) insert(number uint32) (at uint32) {
	at = uint32(len(m.blocks))
	if last := len(m.free) - 1; last >= 0 {
		at, m.free = m.free[last], m.free[:last]
	} else {
		m.blocks = append(m.blocks, kept{})
	}
	m.blocks[at] = kept{number: number}
	if last := len(m.chain) - 1; last >= 0 {
		m.blocks[at].parent = m.chain[last] + 1
		m.blocks[m.chain[last]].children++
	}
	m.places[number] = at + 1
	return at
}

// sync has a block among the leaves if it may leave, where its next use belongs.
func (m *minimum) sync(at uint32) {
	b := &m.blocks[at]
	switch leaf := !b.held && b.children == 0; {
	case leaf && b.leaf == 0:
		m.leaves = append(m.leaves, at)
		b.leaf = uint32(len(m.leaves))
		m.settle(at)
	case leaf:
		m.settle(at)
	case b.leaf != 0:
		m.leave(at)
	}
}

// leave takes a block out of the leaves.
func (m *minimum) leave(at uint32) {
	i, last := m.blocks[at].leaf-1, len(m.leaves)-1
	moved := m.leaves[last]
	m.leaves = m.leaves[:last]
	m.blocks[at].leaf = 0
	if moved != at {
		m.place(i, moved)
		m.settle(moved)
	}
}

func (m *minimum) place(i, at uint32) {
	m.leaves[i] = at
	m.blocks[at].leaf = i + 1
}

// settle moves a leaf up or down to where it belongs.
func (m *minimum) settle(at uint32) {
	i := m.blocks[at].leaf - 1
	for i > 0 && m.later(at, m.leaves[(i-1)/2]) {
		m.place(i, m.leaves[(i-1)/2])
		i = (i - 1) / 2
	}
	for {
		child := 2*i + 1
		if child >= uint32(len(m.leaves)) {
			break
		}
		if child+1 < uint32(len(m.leaves)) && m.later(m.leaves[child+1], m.leaves[child]) {
			child++
		}
		if !m.later(m.leaves[child], at) {
			break
		}
		m.place(i, m.leaves[child])
		i = child
	}
	m.place(i, at)
}

func (m *minimum) later(a, b uint32) bool { return m.blocks[a].next > m.blocks[b].next }
