package policy

import (
	"math/rand/v2"
	"testing"
	"time"
)

// walk drives a policy by random steps as a store may: blocks in chains, in which children hold
// their parents; some with names that others have or had, some old; requests of any part of a
// chain, with blocks that are missing, and with hints of any kind; holds, releases, removals, admissions, and time that goes
// on by nanoseconds or days.
type walk struct {
	t        testing.TB
	rng      *rand.Rand
	policy   Policy
	capacity int64
	now      time.Duration
	used     int64
	live     []*walked
	byNode   map[Node]*walked
	prints   uint64 // how many fingerprints there were
}

// walked is a block of the tier.
type walked struct {
	node     Node
	meta     Meta
	parent   *walked
	children int
	holds    int // of readers
	at       int // in live
}

// walkBlock is the most bytes of a block in a walk.
const walkBlock = 64 << 10

func newWalk(t testing.TB, name string, capacity int64, seed uint64) *walk {
	t.Helper()
	p, err := New(name, capacity)
	if err != nil {
		t.Fatal(err)
	}
	return &walk{t: t, rng: rand.New(rand.NewPCG(seed, 29)), policy: p, capacity: capacity, byNode: map[Node]*walked{}}
}

// step does one thing, and returns the victim after it.
func (w *walk) step() (Node, bool) {
	w.t.Helper()
	switch op := w.rng.IntN(100); {
	case op < 30 || len(w.live) == 0:
		w.insert()
	case op < 60:
		w.access()
	case op < 66:
		w.now += time.Duration(1) << w.rng.IntN(47)
		w.policy.Admit(w.now, Meta{Fingerprint: w.print(), Size: walkBlock, Elsewhere: true})
	case op < 70:
		if b := w.any(); b.children == 0 {
			w.remove(b, w.rng.IntN(2) == 0)
		}
	case op < 80:
		b := w.any()
		b.holds++
		w.policy.Hold(b.node)
	case op < 96:
		if b := w.any(); b.holds > 0 {
			b.holds--
			w.policy.Release(b.node)
		}
	default:
		b := w.any()
		b.meta.Prefix, b.meta.Refs = w.rng.IntN(2) == 0, w.rng.IntN(3)
		w.policy.Update(b.node, b.meta)
	}
	return w.victim()
}

// victim asks for the victim twice, and checks that it may leave and that all are counted.
func (w *walk) victim() (Node, bool) {
	w.t.Helper()
	n, ok := w.policy.Victim()
	if again, okAgain := w.policy.Victim(); n != again || ok != okAgain {
		w.t.Fatalf("victim %d %v, and then %d %v", n, ok, again, okAgain)
	}
	if b := w.byNode[n]; ok && (b == nil || b.children > 0 || b.holds > 0) {
		w.t.Fatalf("victim %d: %+v", n, b)
	}
	if !ok {
		for _, b := range w.live {
			if b.children == 0 && b.holds == 0 {
				w.t.Fatalf("no victim, and %d may leave", b.node)
			}
		}
	}
	if w.policy.Len() != len(w.live) {
		w.t.Fatalf("%d blocks, want %d", w.policy.Len(), len(w.live))
	}
	return n, ok
}

func (w *walk) any() *walked { return w.live[w.rng.IntN(len(w.live))] }

// print is a new fingerprint, or one that was used lately.
func (w *walk) print() uint64 {
	if w.prints > 0 && w.rng.IntN(2) == 0 {
		return w.prints - uint64(w.rng.IntN(min(int(w.prints), 200)))
	}
	w.prints++
	return w.prints
}

// insert makes room for a block and inserts it, at the head of a chain or behind any block.
func (w *walk) insert() {
	w.t.Helper()
	m := Meta{Fingerprint: w.print(), Size: w.rng.Int64N(walkBlock), Refs: 1, Old: w.rng.IntN(20) == 0}
	b := &walked{meta: m}
	if len(w.live) > 0 && w.rng.IntN(4) > 0 {
		b.parent = w.any()
		b.meta.Depth = b.parent.meta.Depth + 1
		b.parent.children++
		w.policy.Hold(b.parent.node)
	}
	for w.used+m.Size > w.capacity {
		n, ok := w.victim()
		if !ok {
			break
		}
		w.remove(w.byNode[n], true)
	}
	b.node, b.at = w.policy.Insert(w.now, b.meta), len(w.live)
	if w.byNode[b.node] != nil {
		w.t.Fatalf("Insert returned %d, which is in use", b.node)
	}
	w.live, w.byNode[b.node] = append(w.live, b), b
	w.used += m.Size
}

// remove takes out a block without children.
func (w *walk) remove(b *walked, evicted bool) {
	w.policy.Remove(b.node, evicted)
	delete(w.byNode, b.node)
	last := w.live[len(w.live)-1]
	w.live[b.at], last.at = last, b.at
	w.live = w.live[:len(w.live)-1]
	w.used -= b.meta.Size
	if b.parent != nil {
		b.parent.children--
		w.policy.Release(b.parent.node)
	}
}

// access makes a request for a chain to any block, and for some that are missing behind it.
func (w *walk) access() {
	r := Request{Now: w.now}
	for b := w.any(); b != nil; b = b.parent {
		r.Chain = append([]Ref{{Fingerprint: b.meta.Fingerprint, Size: b.meta.Size, Node: b.node}}, r.Chain...)
	}
	for range w.rng.IntN(4) {
		r.Chain = append(r.Chain, Ref{Fingerprint: w.print(), Size: walkBlock, Node: NoNode})
	}
	if w.rng.IntN(3) > 0 {
		r.Hits = w.rng.IntN(len(r.Chain) + 1)
	}
	if w.rng.IntN(2) == 0 {
		r.Shared = w.rng.IntN(len(r.Chain)+2) - 1
		r.Due = time.Duration(w.rng.IntN(3)-1) << w.rng.IntN(60)
	}
	w.policy.Access(&r)
}
