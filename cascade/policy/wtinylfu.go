package policy

import "time"

// Classes of wTinyLFU.
const (
	window = iota
	probation
	protected
)

const (
	// windowPart is the part of the tier for new blocks, as one in so many, and
	// probationPart the part of the rest for blocks that were not used there.
	windowPart    = 100
	probationPart = 5
)

// wTinyLFU is W-TinyLFU (Einziger et al., ACM TOS 2017): what outgrows a small LRU window
// enters the main part only if it was asked for more often than what would leave for it,
// by a sketch of counts that is halved as it fills. The main part is a segmented LRU.
type wTinyLFU struct {
	Ranking
	capacity  int64 // bytes of the tier, 0 when unbounded
	counts    sketch
	candidate Node // the last that came from the window and has not won yet, NoNode if it did
}

func newWTinyLFU(capacity int64) *wTinyLFU { return &wTinyLFU{capacity: capacity, candidate: NoNode} }

// Name implements Policy.
func (*wTinyLFU) Name() string { return WTinyLFU }

// Insert implements Policy.
func (w *wTinyLFU) Insert(_ time.Duration, m Meta) Node {
	n := w.Add(window, m)
	w.counts.grow(w.Len())
	return n
}

// Remove implements Policy.
func (w *wTinyLFU) Remove(n Node, _ bool) {
	if !w.Known(n) {
		return
	}
	if n == w.candidate {
		w.candidate = NoNode
	}
	w.Drop(n)
}

// Access implements Policy.
func (w *wTinyLFU) Access(r *Request) {
	for at := len(r.Chain) - 1; at >= 0; at-- {
		ref := r.Chain[at]
		known := w.Known(ref.Node)
		if known {
			ref.Fingerprint = w.at(ref.Node).print
		}
		if at < r.Hits {
			w.counts.add(ref.Fingerprint)
		}
		switch {
		case !known:
		case at < r.Hits && w.Class(ref.Node) != window:
			w.Touch(ref.Node, protected)
		default:
			w.Touch(ref.Node, w.Class(ref.Node))
		}
	}
	most := w.space() - w.space()/windowPart
	for most -= most / probationPart; w.bytes[protected] > most; {
		n, ok := w.first(protected)
		if !ok {
			break
		}
		w.Touch(n, probation)
	}
}

// space is how many bytes there are for blocks.
func (w *wTinyLFU) space() int64 { return max(w.capacity, w.total()) }

// Victim implements Policy.
func (w *wTinyLFU) Victim() (Node, bool) {
	if n, ok := w.eldest(); ok {
		return n, true
	}
	for w.bytes[window] > w.space()/windowPart {
		n, ok := w.first(window)
		if !ok {
			break
		}
		w.Touch(n, probation)
		w.candidate = n
	}
	n, ok := w.either(probation, protected)
	if !ok {
		return w.first(window)
	}
	if c := w.candidate; c != NoNode && c != n && w.at(c).holds == 0 &&
		w.counts.count(w.at(c).print) <= w.counts.count(w.at(n).print) {
		return c, true
	}
	w.candidate = NoNode
	return n, true
}
