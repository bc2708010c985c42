package policy

import "time"

// lru evicts the block whose last access is longest ago. It takes a request's
// blocks in the order they are read, so the tail of a chain is the youngest;
// only holds keep the tail from outliving its head.
type lru struct{ Ranking }

// Name implements Policy.
func (*lru) Name() string { return LRU }

// Insert implements Policy.
func (l *lru) Insert(_ time.Duration, m Meta) Node { return l.Add(0, m.Old) }

// Remove implements Policy.
func (l *lru) Remove(n Node, _ bool) {
	if l.Known(n) {
		l.Drop(n)
	}
}

// Update implements Policy; nothing of Meta matters here.
func (*lru) Update(Node, Meta) {}

// Access implements Policy.
func (l *lru) Access(r *Request) {
	for _, ref := range r.Chain {
		if l.Known(ref.Node) {
			l.Touch(ref.Node, 0)
		}
	}
}
