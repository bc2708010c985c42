package policy

import "time"

// lfuda is LFU with dynamic aging (Arlitt et al., 2000): the block leaves that was used least
// often, where each new block and each use counts from what the last victim had, so that what
// was used often long ago leaves in the end. Among equals it is LRU.
type lfuda struct {
	Ranking
	age uint64 // what the last victim had
}

// stampBits is how much of a key is for the order among equals: it repeats after 2⁴⁰ uses,
// which disturbs that order once.
const stampBits = 40

// mostAge is the greatest count that a key can have. There all are equal.
const mostAge = young>>stampBits - 1

// Name implements Policy.
func (*lfuda) Name() string { return LFUDA }

// Insert implements Policy.
func (l *lfuda) Insert(_ time.Duration, m Meta) Node {
	n := l.Add(0, m)
	if !m.Old {
		l.count(n)
	}
	return n
}

// Remove implements Policy.
func (l *lfuda) Remove(n Node, evicted bool) {
	if !l.Known(n) {
		return
	}
	if evicted && !l.old(n) {
		l.age = max(l.age, l.at(n).key&(young-1)>>stampBits)
	}
	l.Drop(n)
}

// Access implements Policy.
func (l *lfuda) Access(r *Request) {
	for at := len(r.Chain) - 1; at >= 0; at-- {
		if n := r.Chain[at].Node; l.Known(n) && (at < r.Hits || l.old(n)) {
			l.count(n)
		}
	}
}

// count counts a use.
func (l *lfuda) count(n Node) {
	l.use(n, 255)
	l.stamp++
	count := min(l.age+uint64(l.at(n).uses), mostAge)
	l.rank(n, 0, young|count<<stampBits|l.stamp%(1<<stampBits))
}
