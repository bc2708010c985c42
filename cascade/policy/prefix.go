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
	known   histories // of blocks that have left
	tier    leaves
	learned hazards

	capacity int64  // bytes of the tier, 0 when unbounded
	resident int64  // bytes of all blocks
	elder    uint32 // of the last that was old when it came
	order    uint16 // of the last use of the tick
	evicted  int64  // bytes, since the tick since
	since    uint32
	turned   uint32 // ticks that it took the last time to evict as much as there is

	chain []*history // of the request's blocks
}

// nearEnd is how many blocks from its end a request may continue the one before, which
// may have ended in a block that was not full.
const nearEnd = 2

// newPrefix returns the policy for a tier of capacity bytes, 0 when unbounded.
func newPrefix(capacity int64) *prefix {
	return &prefix{known: newHistories(), tier: newLeaves(), capacity: capacity, turned: math.MaxUint32}
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
		p.hint(&p.tier.at(n).history, n, true, 0)
	}
}

// deepen takes in that a block, which no request has asked for again, is the last of so many:
// what brought it had at least these.
func (p *prefix) deepen(n Node, blocks int) {
	e, length := &p.tier.at(n).history, saturate16(blocks)
	switch {
	case e.touches > 1 || length <= e.length:
	case e.class == unaged:
		e.length = length
	default:
		p.tier.takeOut(e, n)
		e.length = length
		p.sort(e, p.learned.classes[e.class].class.ofLength(length))
		p.tier.putBack(e, n)
	}
}

// Admit implements Policy: in a full tier a block is refused that lies elsewhere and would be the
// next to leave.
func (p *prefix) Admit(now time.Duration, m Meta) bool {
	if !m.Elsewhere || p.capacity == 0 || p.resident+m.Size <= p.capacity {
		return true
	}
	i := p.known.find(m.Fingerprint)
	if i == none {
		return true
	}
	p.advance(now)
	e := p.known.at(i)
	n, ok := p.tier.first()
	if !ok || p.tier.isFresh(&p.tier.at(n).history) { // the tier has nothing that is older
		return true
	}
	return p.worth(&p.tier.at(n).history) <= p.worth(e)
}

// worth is what a block is worth at its age.
func (p *prefix) worth(e *history) float32 {
	if e.class == unaged {
		return -1
	}
	return p.learned.indexes[e.class][p.tier.ages.bin(e.touched)]
}

// Insert implements Policy. What was asked for lately is as young as that.
func (p *prefix) Insert(now time.Duration, m Meta) Node {
	p.advance(now)
	n := p.tier.add(m.Fingerprint, m.Size)
	b := p.tier.at(n)
	p.resident += b.size.bytes()
	if i := p.known.find(m.Fingerprint); i != none {
		b.history = *p.known.at(i)
		p.known.remove(i)
	}
	b.resident = true
	switch {
	case m.Old:
		p.elder++
		p.tier.takeOut(&b.history, n)
		b.history = history{touched: p.elder, class: unaged, length: b.length, turn: b.turn, resident: true}
		p.tier.enter(n)
	case b.class == unaged:
		p.begin(n, int(m.Depth)+1)
	default:
		p.arrange(n)
		p.tier.enter(n)
	}
	p.Update(n, m)
	return n
}

// Remove implements Policy. Of blocks with the same fingerprint the last that left is remembered.
func (p *prefix) Remove(n Node, evicted bool) {
	if !p.tier.has(n) {
		return
	}
	b := *p.tier.at(n)
	p.resident -= b.size.bytes()
	if evicted {
		p.turn(b.size.bytes())
	}
	if evicted && b.class != unaged {
		p.tier.leave(n)
		print := *p.tier.prints.at(uint32(n))
		p.forget(p.known.find(print))
		b.resident = false
		*p.known.begin(print) = b.history
	} else {
		p.tier.takeOut(&b.history, n)
	}
	p.tier.blocks.give(uint32(n))
	if p.Len() > 0 {
		p.trim()
	} else { // ghosts would be few among numbers that were used, and far to seek
		p.known = newHistories()
		p.tier.forgetAll()
	}
}

// turn takes in that so many bytes were evicted, for how long the tier takes to turn over.
func (p *prefix) turn(bytes int64) {
	if p.evicted == 0 {
		p.since = p.tier.ages.now
	}
	p.evicted += bytes
	took := p.tier.ages.now - p.since
	p.tier.turnsOver(max(took, p.turned))
	if p.evicted > p.resident {
		p.evicted, p.turned = 0, took
	}
}

// trim forgets ghosts while there are too many.
func (p *prefix) trim() {
	for most := mostGhosts(p.Len(), max(p.capacity, p.resident)); p.known.len() > most; {
		p.forget(p.known.oldest())
	}
}

// forget forgets a ghost, if there is one.
func (p *prefix) forget(i uint32) {
	if i != none {
		p.tier.takeOut(p.known.at(i), NoNode)
		p.known.remove(i)
	}
}

// Hold implements Policy.
func (p *prefix) Hold(n Node) {
	if !p.tier.has(n) {
		return
	}
	b := p.tier.at(n)
	if b.holds++; b.holds == 1 && p.tier.isFresh(&b.history) {
		p.tier.leave(n)
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
	p.advance(r.Now)
	asked := r.Chain[:min(max(r.Hits, 0), len(r.Chain))]
	p.renew(r.Chain, len(asked))
	if len(asked) == 0 {
		for at := len(r.Chain) - 1; at >= 0; at-- {
			if e, n := p.lookUp(r.Chain[at]); e != nil {
				p.hint(e, n, at < r.Shared, r.Due)
			}
		}
		return
	}
	known, turn := p.session(asked)
	for at := len(asked) - 1; at >= 0; at-- { // so that a head is the youngest
		e, n := p.chain[at], asked[at].Node
		if !e.resident {
			n = NoNode
		}
		if e.class != unaged {
			p.learned.use(e.class, p.tier.ages.bin(e.touched), e.share())
		}
		p.tier.takeOut(e, n)
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
		p.use(e, n, last, at < r.Shared, due)
	}
	p.learned.estimateSome(len(asked), p.tier.setWorth)
	p.trim()
}

// renew makes blocks of a chain that were old when they came, and are stored once more, as
// young as if they had come now.
func (p *prefix) renew(chain []Ref, from int) {
	for at := len(chain) - 1; at >= from; at-- {
		n := chain[at].Node
		if p.tier.has(n) && p.tier.at(n).class == unaged {
			p.tier.leave(n)
			p.begin(n, max(at+1, int(p.tier.at(n).length)))
		}
	}
}

// hint takes in what is declared of a block, which is not used for that, and may have left.
func (p *prefix) hint(e *history, n Node, marked bool, due time.Duration) {
	if e.class == unaged {
		return
	}
	before := p.learned.classes[e.class].class
	c := before.hinted(e, marked, due)
	if e.sessions > 1 || c == before && due == 0 {
		return
	}
	p.tier.takeOut(e, n)
	p.sort(e, c)
	if due > 0 { // from now on
		e.touched = p.tier.ages.now
		p.arrange(n)
	}
	p.tier.putBack(e, n)
}

// session finds the histories of the blocks that were asked for, how many of them were known
// before, and which turn of a conversation the request is: it continues the last request that
// used the deepest of those if that ended there, and else begins a conversation, which shares
// them with others.
func (p *prefix) session(asked []Ref) (known int, turn uint8) {
	p.chain = slices.Grow(p.chain[:0], len(asked))[:len(asked)]
	turn = 1
	for at := len(asked) - 1; at >= 0; at-- {
		e, _ := p.lookUp(asked[at])
		if e == nil {
			e = p.known.begin(asked[at].Fingerprint)
		}
		p.chain[at] = e
		if known == 0 && e.class != unaged {
			known = at + 1
			if int(e.length)-known < nearEnd {
				turn = saturate8(int(e.turn) + 1)
			}
		}
	}
	return known, turn
}

// lookUp finds what is known of a block, nil if nothing is, and its Node if it is in the tier.
func (p *prefix) lookUp(ref Ref) (*history, Node) {
	if p.tier.has(ref.Node) {
		return &p.tier.at(ref.Node).history, ref.Node
	}
	if i := p.known.find(ref.Fingerprint); i != none {
		return p.known.at(i), NoNode
	}
	return nil, NoNode
}

// begin records that a block of the tier came that was not asked for, at the end of a request of so many blocks.
func (p *prefix) begin(n Node, length int) {
	e := &p.tier.at(n).history
	e.length, e.turn, e.sessions = saturate16(length), 1, 1
	p.use(e, n, false, false, 0)
}

// use brings a block, which is in no group, and in the tier if it has a Node, into that of its class as it is used now.
func (p *prefix) use(e *history, n Node, last, marked bool, due time.Duration) {
	e.touch(p.tier.ages.now)
	p.sort(e, classOf(e, last).hinted(e, marked, due))
	p.arrange(n)
	p.tier.putBack(e, n)
}

// sort gives a block, which is in no group, a class.
func (p *prefix) sort(e *history, c class) {
	number, isNew := p.learned.number(c)
	e.class = number
	if isNew {
		p.tier.setWorth(number, &p.learned.indexes[number])
	}
}

// arrange puts a block, if it is in the tier and was used in this tick, after those that were.
func (p *prefix) arrange(n Node) {
	if n != NoNode && p.tier.at(n).touched == p.tier.ages.now {
		p.order += min(1, math.MaxUint16-p.order)
		p.tier.at(n).order = p.order
	}
}

// advance makes a later time the present.
func (p *prefix) advance(now time.Duration) {
	if tick := ticks(now); tick > p.tier.ages.now {
		p.order = 0
		p.tier.advance(tick, &p.learned)
	}
}
