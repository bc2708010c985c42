package policy

import "time"

// Classes of CASCADE equation 4, the first to leave first.
const (
	priorityHigh = iota
	priorityLow
)

// paper is CASCADE equation 4 as written (§III-C): a prefix, or a block with
// more than one reference, leaves after all others, however long ago it was
// used. A reference is a name, or a request that stored the block or found it. The equation
// does not define the order among equals, so each class is LRU, which Algorithm 1 names.
// Without a bound on the shared class this keeps history that nobody asks for any more. It is
// here for comparison.
type paper struct{ Ranking }

// Name implements Policy.
func (*paper) Name() string { return Paper }

// Insert implements Policy.
func (p *paper) Insert(_ time.Duration, m Meta) Node {
	n := p.Add(evictionPriority(m), m)
	p.use(n, 2)
	return n
}

// Update implements Policy: a block changes class as its references come and
// go, and keeps its age.
func (p *paper) Update(n Node, m Meta) {
	if p.Known(n) && p.at(n).uses < 2 && !p.old(n) {
		p.Reclass(n, evictionPriority(m))
	}
}

// Access implements Policy.
func (p *paper) Access(r *Request) {
	for at := len(r.Chain) - 1; at >= 0; at-- {
		n := r.Chain[at].Node
		if !p.Known(n) {
			continue
		}
		class := p.Class(n)
		if at < r.Hits {
			if p.use(n, 2); p.at(n).uses > 1 {
				class = priorityLow
			}
		}
		p.Touch(n, class)
	}
}

// evictionPriority is CASCADE equation 4.
func evictionPriority(m Meta) int {
	if shared(m) {
		return priorityLow
	}
	return priorityHigh
}

// Demotion is that of Algorithm 1.
func (*paper) Demotion(m Meta) Demotion { return DemotionOf(m) }
