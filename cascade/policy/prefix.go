package policy

import "time"

// Segments of the prefix policy, the first to leave first.
const (
	probation uint64 = iota
	protected
)

// protectedPart bounds the protected segment to one part in so many of the
// tier's bytes: 20 %. Public traces of chats gain up to about this share; above
// it, histories of ended sessions push out what is live.
const protectedPart = 5

// prefix is the default policy: LRU in prefix order with a bounded protected
// segment.
//
// A request touches its blocks tail first, so that the head of a chain is
// younger than what follows it. A block that a request finds moves to the
// protected segment. When that outgrows its share, its oldest blocks return to
// probation as the youngest there: protection ends for what is not used again.
type prefix struct {
	Ranking
	capacity int64 // bytes of the tier, 0 when unbounded
	resident int64 // bytes of all blocks
	sheltered
}

// newPrefix returns the policy for a tier of capacity bytes, 0 when unbounded.
func newPrefix(capacity int64) *prefix {
	return &prefix{capacity: capacity, sheltered: sheltered{oldest: Node(none), youngest: Node(none)}}
}

// Name implements Policy.
func (*prefix) Name() string { return Prefix }

// Insert implements Policy.
func (p *prefix) Insert(_ time.Duration, m Meta) Node {
	n, size := p.Add(probation, m.Old), max(m.Size, 0)
	p.grow(n, size)
	p.resident += size
	return n
}

// Remove implements Policy.
func (p *prefix) Remove(n Node, _ bool) {
	if !p.Known(n) {
		return
	}
	if p.Class(n) == protected {
		p.unlink(n)
	}
	p.resident -= p.links[n].size
	p.Drop(n)
}

// Update implements Policy. The engine's prefix mark and the reference count
// mean that a block may be reused; this policy waits until it is.
func (p *prefix) Update(Node, Meta) {}

// Access implements Policy.
func (p *prefix) Access(r *Request) {
	touched := false
	for i := len(r.Chain) - 1; i >= 0; i-- {
		n := r.Chain[i].Node
		if !p.Known(n) {
			continue
		}
		touched = true
		was := p.Class(n)
		if was == protected {
			p.unlink(n)
		}
		if was == protected || i < r.Hits {
			p.append(n)
			p.Touch(n, protected)
		} else {
			p.Touch(n, probation)
		}
	}
	if touched {
		p.shrink()
	}
}

// shrink returns the oldest protected blocks to probation until the rest is
// within bounds.
func (p *prefix) shrink() {
	for limit := p.limit(); p.bytes > limit; {
		n := p.oldest
		p.unlink(n)
		p.Touch(n, probation)
	}
}

// limit is the most bytes that may be protected. An unbounded tier evicts only
// when its owner wants it to; there the share is of what it holds.
func (p *prefix) limit() int64 {
	whole := p.capacity
	if whole == 0 {
		whole = p.resident
	}
	return whole / protectedPart
}

// sheltered is the list of the protected blocks by age, held ones included.
// The heap cannot serve here: it has only blocks without holds.
type sheltered struct {
	links            []link
	oldest, youngest Node
	bytes            int64
}

// link is one block's place in the list; the size is kept for blocks in
// probation too.
type link struct {
	older, younger Node
	size           int64
}

// grow makes room for a block and notes its size.
func (s *sheltered) grow(n Node, size int64) {
	if int(n) == len(s.links) {
		s.links = append(s.links, link{})
	}
	s.links[n] = link{size: size}
}

// append makes a block outside the list its youngest.
func (s *sheltered) append(n Node) {
	l := &s.links[n]
	l.older, l.younger = s.youngest, Node(none)
	if s.youngest == Node(none) {
		s.oldest = n
	} else {
		s.links[s.youngest].younger = n
	}
	s.youngest = n
	s.bytes += l.size
}

// unlink takes a block out of the list.
func (s *sheltered) unlink(n Node) {
	l := s.links[n]
	if l.older == Node(none) {
		s.oldest = l.younger
	} else {
		s.links[l.older].younger = l.younger
	}
	if l.younger == Node(none) {
		s.youngest = l.older
	} else {
		s.links[l.younger].older = l.older
	}
	s.bytes -= l.size
}
