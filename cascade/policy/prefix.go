package policy

import (
	"math"
	"slices"
	"time"
)

// prefix is the default policy: it keeps what is worth most for the room and the time that
// it takes: the chance that a block is used again, which is learned online from how long
// blocks of its class were not used before they were. In chains, leaves first.
//
// What it learns from, it remembers of blocks that have left too, a bounded number. A block
// of which nothing is known is as good as what is seen of all blocks that are new.
type prefix struct {
	known   *histories
	tier    leaves
	learned hazards

	now      uint32 // tick of the last call
	capacity int64  // bytes of the tier, 0 when unbounded
	resident int64  // bytes of all blocks
	elder    uint32 // of the last that was old when it came
	order    uint16 // of the last use of the tick
	evicted  int64  // bytes, since the tick since
	since    uint32
	turned   uint32 // ticks that it took the last time to evict as much as there is

	chain     []uint32 // histories of the request's blocks
	strangers uint64   // blocks whose fingerprint another one had
}

const (
	// nearEnd is how many blocks from its end a request may continue the one before, which
	// may have ended in a block that was not full.
	nearEnd = 2

	// agesPerCall is how many blocks change their bins in one call, and agesPerBlock how many
	// more for each block of its request: after an idle night all blocks are due at once.
	agesPerCall  = 1 << 12
	agesPerBlock = 1 << 6
)

// newPrefix returns the policy for a tier of capacity bytes, 0 when unbounded.
func newPrefix(capacity int64) *prefix {
	known := newHistories()
	return &prefix{known: &known, tier: newLeaves(&known), capacity: capacity, turned: math.MaxUint32}
}

// Name implements Policy.
func (*prefix) Name() string { return Prefix }

// Len implements Policy.
func (p *prefix) Len() int { return p.tier.blocks.len() }

// Demotion implements Policy, as that of a Ranking.
func (*prefix) Demotion(Meta) Demotion { return ToNext }

// Update implements Policy.
func (p *prefix) Update(n Node, m Meta) {
	if !p.tier.has(n) {
		return
	}
	p.deepen(n, int(m.Depth)+1)
	if m.Prefix {
		p.hint(p.tier.at(n).history-1, true, 0)
	}
}

// deepen takes in that a block, which no request has asked for again, is the last of so many:
// what brought it had at least these.
func (p *prefix) deepen(n Node, blocks int) {
	e, length := p.tier.historyOf(n), saturate16(blocks)
	if e.touches > 1 || length <= e.length {
		return
	}
	e.length = length
	if e.bin < unknownAge {
		p.tier.leave(n)
		p.sort(e, p.learned.classes[e.class].class.ofLength(length))
		p.tier.enter(n)
	}
}

// Admit implements Policy: in a full tier a block is refused that lies elsewhere and would be the
// next to leave.
func (p *prefix) Admit(now time.Duration, m Meta) bool {
	if !m.Elsewhere || p.capacity == 0 || p.resident+m.Size <= p.capacity {
		return true
	}
	i := p.known.find(m.Fingerprint)
	if i == none || p.known.at(i).bin == unknownAge {
		return true
	}
	p.advance(now, 0)
	e := p.known.at(i)
	n, ok := p.tier.first()
	if !ok || p.tier.isFresh(n) { // the tier has nothing that is older
		return true
	}
	return p.tier.cells[p.tier.cellOf(n)].worth <= p.learned.indexes[e.class][e.bin]
}

// Insert implements Policy. What was asked for lately is as young as that.
func (p *prefix) Insert(now time.Duration, m Meta) Node {
	p.advance(now, 0)
	i := p.known.find(m.Fingerprint)
	if i != none && p.known.at(i).node != NoNode { // another block came with this name
		m.Fingerprint, i = p.stranger(), none
	}
	if i == none {
		i = p.known.begin(m.Fingerprint)
	}
	n := p.tier.add(i, m.Size)
	p.known.enter(i, n)
	p.resident += p.tier.at(n).size.bytes()
	switch {
	case m.Old:
		p.elder++
		p.known.retire(i, p.elder)
	case p.known.at(i).bin == unknownAge:
		p.begin(i, int(m.Depth)+1)
	default:
		p.arrange(i)
	}
	p.tier.enter(n)
	p.Update(n, m)
	return n
}

// stranger returns a fingerprint that no block has.
func (p *prefix) stranger() uint64 {
	for {
		p.strangers++
		if p.known.find(^p.strangers) == none {
			return ^p.strangers
		}
	}
}

// Remove implements Policy.
func (p *prefix) Remove(n Node, evicted bool) {
	if !p.tier.has(n) {
		return
	}
	p.tier.leave(n)
	b := *p.tier.at(n)
	p.resident -= b.size.bytes()
	if evicted {
		p.turn(b.size.bytes())
	}
	p.tier.blocks.give(uint32(n))
	p.known.leave(b.history - 1)
	if !evicted || p.known.at(b.history-1).bin == unknownAge {
		p.known.forget(b.history - 1)
	}
	if p.Len() == 0 { // ghosts would be few among numbers that were used, and far to seek
		*p.known = newHistories()
	}
	p.trim()
}

// turn takes in that so many bytes were evicted, for how long the tier takes to turn over.
func (p *prefix) turn(bytes int64) {
	if p.evicted == 0 {
		p.since = p.now
	}
	p.evicted += bytes
	took := p.now - p.since
	p.tier.turnsOver(max(took, p.turned))
	if p.evicted > p.resident {
		p.evicted, p.turned = 0, took
	}
}

// trim forgets ghosts while there are too many.
func (p *prefix) trim() {
	p.known.trim(mostGhosts(p.Len(), max(p.capacity, p.resident)))
}

// Hold implements Policy.
func (p *prefix) Hold(n Node) {
	if p.tier.has(n) {
		p.tier.at(n).holds++
	}
}

// Release implements Policy.
func (p *prefix) Release(n Node) {
	if !p.tier.has(n) || p.tier.at(n).holds == 0 {
		return
	}
	b := p.tier.at(n)
	if b.holds--; b.holds == 0 && b.back == outside {
		p.tier.enter(n)
	}
}

// Victim implements Policy.
func (p *prefix) Victim() (Node, bool) { return p.tier.first() }

// Access implements Policy. What was stored, and not asked for, is as old as when it was
// inserted.
func (p *prefix) Access(r *Request) {
	p.advance(r.Now, len(r.Chain))
	asked := r.Chain[:min(max(r.Hits, 0), len(r.Chain))]
	p.renew(r.Chain, len(asked))
	if len(asked) == 0 {
		for at := len(r.Chain) - 1; at >= 0; at-- {
			p.hint(p.lookUp(r.Chain[at]), at < r.Shared, r.Due)
		}
		return
	}
	known, turn := p.session(asked)
	for at := len(asked) - 1; at >= 0; at-- { // so that a head is the youngest
		i := p.chain[at]
		e := p.known.at(i)
		if e.bin != unknownAge {
			p.learned.count(e, true)
		}
		if e.node != NoNode {
			p.tier.leave(e.node)
		}
		if at >= known {
			e.sessions = 1
		} else if turn == 1 {
			e.sessions = saturate8(int(e.sessions) + 1)
		}
		e.turn, e.length = turn, saturate16(len(asked))
		last := at == len(asked)-1
		due := r.Due
		if last {
			due = 0
		}
		p.use(i, last, at < r.Shared, due)
		if e.node != NoNode {
			p.tier.enter(e.node)
		}
	}
	p.learned.estimateSome(len(asked), p.tier.setWorth)
	p.trim()
}

// renew makes blocks of a chain that were old when they came, and are stored once more, as
// young as if they had come now.
func (p *prefix) renew(chain []Ref, from int) {
	for at := len(chain) - 1; at >= from; at-- {
		n := chain[at].Node
		if p.tier.has(n) && p.tier.historyOf(n).bin == unknownAge {
			p.tier.leave(n)
			p.begin(p.tier.at(n).history-1, max(at+1, int(p.tier.historyOf(n).length)))
			p.tier.enter(n)
		}
	}
}

// hint takes in what is declared of a block, which is not used for that, and may have left.
func (p *prefix) hint(i uint32, marked bool, due time.Duration) {
	if i == none || p.known.at(i).bin == unknownAge {
		return
	}
	e := p.known.at(i)
	before := p.learned.classes[e.class].class
	c := before.hinted(e, marked, due)
	if e.sessions > 1 || c == before && due == 0 {
		return
	}
	n := e.node
	if n != NoNode {
		p.tier.leave(n)
	}
	p.sort(e, c)
	if due > 0 { // from now on
		p.known.touch(i, p.now)
		p.arrange(i)
	}
	if n != NoNode {
		p.tier.enter(n)
	}
}

// session finds the histories of the blocks that were asked for, how many of them were known
// before, and which turn of a conversation the request is: it continues the last request that
// used the deepest of those if that ended there, and else begins a conversation, which shares
// them with others.
func (p *prefix) session(asked []Ref) (known int, turn uint8) {
	p.chain = slices.Grow(p.chain[:0], len(asked))[:len(asked)]
	turn = 1
	for at := len(asked) - 1; at >= 0; at-- {
		i := p.find(asked[at])
		p.chain[at] = i
		if e := p.known.at(i); known == 0 && e.bin != unknownAge {
			known = at + 1
			if int(e.length)-known < nearEnd {
				turn = saturate8(int(e.turn) + 1)
			}
		}
	}
	return known, turn
}

// find finds the history of a block of a request, and begins it if there is none.
func (p *prefix) find(ref Ref) uint32 {
	if i := p.lookUp(ref); i != none {
		return i
	}
	return p.known.begin(ref.Fingerprint)
}

// lookUp finds the history of a block, none if there is none.
func (p *prefix) lookUp(ref Ref) uint32 {
	if p.tier.has(ref.Node) {
		return p.tier.at(ref.Node).history - 1
	}
	return p.known.find(ref.Fingerprint)
}

// begin records that a block came that was not asked for, at the end of a request of so many
// blocks.
func (p *prefix) begin(i uint32, length int) {
	e := p.known.at(i)
	e.length, e.turn, e.sessions = saturate16(length), 1, 1
	p.use(i, false, false, 0)
}

// use records that a block, which is in no cell, is used now, and of what class it is from
// then on.
func (p *prefix) use(i uint32, last, marked bool, due time.Duration) {
	e := p.known.at(i)
	e.touches = saturate8(int(e.touches) + 1)
	p.sort(e, classOf(e, p.now-e.touched, last).hinted(e, marked, due))
	p.known.touch(i, p.now)
	p.arrange(i)
}

// sort gives a block, which is in no cell, a class.
func (p *prefix) sort(e *history, c class) {
	number, isNew := p.learned.number(c)
	e.class = number
	if isNew {
		p.tier.setWorth(number, &p.learned.indexes[number])
	}
}

// arrange puts a block, if it is in the tier and was used in this tick, after those that were.
func (p *prefix) arrange(i uint32) {
	if e := p.known.at(i); e.node != NoNode && e.touched == p.now {
		p.order += min(1, mostOrder-p.order)
		p.tier.at(e.node).order = p.order
	}
}

// advance moves blocks to the bins of their ages, as far as a call may, for a request of so
// many blocks.
func (p *prefix) advance(now time.Duration, blocks int) {
	if tick := ticks(now); tick > p.now {
		p.now, p.order = tick, 0
	}
	p.known.age(p.now, agesPerCall+blocks*agesPerBlock, p.tier.fetch, func(i uint32, bin uint8) {
		e := p.known.at(i)
		n := e.node
		listed := n != NoNode && p.tier.leave(n)
		for ; e.bin < bin; e.bin++ {
			p.learned.count(e, false)
		}
		if listed {
			p.tier.enter(n)
		}
	})
}
