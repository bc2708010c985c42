package policy

import "time"

// Classes of CASCADE equation 4, the first to leave first.
const (
	priorityHigh uint64 = iota
	priorityLow
)

// paper is CASCADE equation 4 as written (§III-C): a prefix, or a block with
// more than one reference, leaves after all others, however long ago it was
// used. The equation does not define the order among equals, so each class is
// LRU, which Algorithm 1 names. Without a bound on the shared class this keeps
// history that nobody asks for any more: on an agentic trace, with a tier of 10 %
// of the distinct blocks, it finds 16.5 % of them where LRU finds 92.5 %. It is
// here for comparison.
type paper struct{ Ranking }

// Name implements Policy.
func (*paper) Name() string { return Paper }

// Insert implements Policy.
func (p *paper) Insert(_ time.Duration, m Meta) Node { return p.Add(evictionPriority(m), m.Old) }

// Remove implements Policy.
func (p *paper) Remove(n Node, _ bool) {
	if p.Known(n) {
		p.Drop(n)
	}
}

// Update implements Policy: a block changes class as its references come and
// go, and keeps its age.
func (p *paper) Update(n Node, m Meta) {
	if p.Known(n) {
		p.Reclass(n, evictionPriority(m))
	}
}

// Access implements Policy.
func (p *paper) Access(r *Request) {
	for _, ref := range r.Chain {
		if p.Known(ref.Node) {
			p.Touch(ref.Node, p.Class(ref.Node))
		}
	}
}

// evictionPriority is CASCADE equation 4.
func evictionPriority(m Meta) uint64 {
	if shared(m) {
		return priorityLow
	}
	return priorityHigh
}
