package policy

import "time"

// Classes of arc.
const (
	seenOnce = iota
	seenMore
)

// arc is ARC (Megiddo and Modha, FAST 2003): two LRU lists, of blocks that were asked for
// once since they came and more often. What returns soon after it left one of them enlarges
// that one's share.
type arc struct {
	Ranking
	capacity int64     // bytes of the tier, 0 when unbounded
	target   int64     // bytes of the class seenOnce: above that, it gives up blocks
	left     [2]ghosts // by class
}

func newArc(capacity int64) *arc {
	return &arc{capacity: capacity, left: [2]ghosts{newGhosts(), newGhosts()}}
}

// Name implements Policy.
func (*arc) Name() string { return ARC }

// Insert implements Policy.
func (a *arc) Insert(_ time.Duration, m Meta) Node {
	once, more := &a.left[seenOnce], &a.left[seenMore]
	ratio := func(to, by *ghosts) int64 { return max(m.Size, m.Size*by.bytes/max(to.bytes, 1)) }
	class := seenOnce
	if i := once.find(m.Fingerprint); i != none {
		a.target = min(a.target+ratio(once, more), a.space())
		class = seenMore
		once.forget(i)
	} else if i := more.find(m.Fingerprint); i != none {
		a.target = max(a.target-ratio(more, once), 0)
		class = seenMore
		more.forget(i)
	}
	return a.Add(class, m)
}

// Remove implements Policy.
func (a *arc) Remove(n Node, evicted bool) {
	if !a.Known(n) {
		return
	}
	if b := a.at(n); evicted && !a.old(n) {
		a.left[b.class].remember(b.print, b.size)
	}
	a.Drop(n)
	once, more, most := &a.left[seenOnce], &a.left[seenMore], mostGhosts(a.Len(), a.space())
	once.trim(a.space()-a.bytes[seenOnce], most)
	more.trim(2*a.space()-a.total()-once.bytes, most-once.len())
}

// space is how many bytes there are for blocks.
func (a *arc) space() int64 { return max(a.capacity, a.total()) }

// Access implements Policy.
func (a *arc) Access(r *Request) {
	for at := len(r.Chain) - 1; at >= 0; at-- {
		switch n := r.Chain[at].Node; {
		case !a.Known(n):
		case at < r.Hits:
			a.Touch(n, seenMore)
		default:
			a.Touch(n, a.Class(n))
		}
	}
}

// Victim implements Policy.
func (a *arc) Victim() (Node, bool) {
	if n, ok := a.eldest(); ok {
		return n, true
	}
	if a.bytes[seenOnce] > a.target {
		return a.either(seenOnce, seenMore)
	}
	return a.either(seenMore, seenOnce)
}
