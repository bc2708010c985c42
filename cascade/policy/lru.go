package policy

import "time"

// lru evicts the block whose last access is longest ago. A request touches its
// blocks tail first, so that the head of a chain is younger than what comes after it.
type lru struct{ Ranking }

// Name implements Policy.
func (*lru) Name() string { return LRU }

// Insert implements Policy.
func (l *lru) Insert(_ time.Duration, m Meta) Node { return l.Add(0, m) }

// Access implements Policy.
func (l *lru) Access(r *Request) {
	for at := len(r.Chain) - 1; at >= 0; at-- {
		if n := r.Chain[at].Node; l.Known(n) {
			l.Touch(n, 0)
		}
	}
}
