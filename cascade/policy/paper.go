package policy

import "time"

// Classes of CASCADE equation 4, the first to leave first.
const (
	priorityHigh uint64 = iota
	priorityLow
)

// paper is CASCADE equation 4 as written (§III-C): a prefix, or a block with
// more than one reference, leaves after all others, however long ago it was
// used. The equation says nothing of the order among equals, so each class is
// LRU, which Algorithm 1 names. Without a bound on the shared class this keeps
// dead history (design.md §5); it is here for comparison.
type paper struct{ ranking }

// Name implements Policy.
func (*paper) Name() string { return Paper }

// Insert implements Policy.
func (p *paper) Insert(_ time.Duration, m Meta) Node { return p.add(evictionPriority(m), m.Old) }

// Remove implements Policy.
func (p *paper) Remove(n Node) {
	if p.known(n) {
		p.drop(n)
	}
}

// Update implements Policy: a block changes class as its references come and
// go, and keeps its age.
func (p *paper) Update(n Node, m Meta) {
	if p.known(n) {
		p.reclass(n, evictionPriority(m))
	}
}

// Access implements Policy.
func (p *paper) Access(_ time.Duration, chain []Node, _ int) {
	for _, n := range chain {
		if p.known(n) {
			p.touch(n, p.class(n))
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
