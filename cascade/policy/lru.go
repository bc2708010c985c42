package policy

import "time"

// lru evicts the block whose last access is longest ago. It takes a request's
// blocks in the order they are read, so the tail of a chain is the youngest;
// only holds keep the tail from outliving its head.
type lru struct{ ranking }

// Name implements Policy.
func (*lru) Name() string { return LRU }

// Insert implements Policy.
func (l *lru) Insert(_ time.Duration, m Meta) Node { return l.add(0, m.Old) }

// Remove implements Policy.
func (l *lru) Remove(n Node) {
	if l.known(n) {
		l.drop(n)
	}
}

// Update implements Policy; nothing of Meta matters here.
func (*lru) Update(Node, Meta) {}

// Access implements Policy.
func (l *lru) Access(_ time.Duration, chain []Node, _ int) {
	for _, n := range chain {
		if l.known(n) {
			l.touch(n, 0)
		}
	}
}
