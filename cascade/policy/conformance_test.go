package policy

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestConformance is what holds for all policies.
func TestConformance(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, name string){
		"new":                   newIsEmpty,
		"random walks":          walksAreSound,
		"deterministic":         isDeterministic,
		"unknown nodes":         unknownNodesDoNothing,
		"old leaves first":      oldLeavesFirst,
		"steady state":          steadyStateAllocatesNothing,
		"bytes of a block":      takesFewBytes,
		"ghosts are bounded":    ghostsAreBounded,
		"equal fingerprints":    equalFingerprintsWork,
		"nothing leaves a hole": leavesNoHole,
		"explains":              explains,
		"explaining is reading": explainsAsIs,
	} {
		for _, policy := range AllNames() {
			t.Run(policy+"/"+name, func(t *testing.T) { test(t, policy) })
		}
	}
}

func must(t testing.TB, name string, capacity int64) Policy {
	t.Helper()
	p, err := New(name, capacity)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newIsEmpty(t *testing.T, name string) {
	p := must(t, name, 1<<30)
	if p.Name() != name || p.Len() != 0 {
		t.Errorf("%q of %d blocks", p.Name(), p.Len())
	}
	if n, ok := p.Victim(); ok {
		t.Errorf("empty tier has victim %d", n)
	}
}

// walksAreSound: see walk.victim.
func walksAreSound(t *testing.T, name string) {
	for _, capacity := range []int64{1, 1 << 20, 16 << 20} {
		w := newWalk(t, name, capacity, 1)
		for range 30_000 {
			n, ok := w.step()
			if tiny, is := w.policy.(*wTinyLFU); is && tiny.candidate == n {
				continue // it has lost
			}
			if r, ranks := w.policy.(interface{ ranking() *Ranking }); ok && ranks {
				firstOfClass(t, r.ranking(), w, n)
			}
		}
	}
}

func (r *Ranking) ranking() *Ranking { return r }

// firstOfClass checks by a search that n is the first block of its class that may leave.
func firstOfClass(t *testing.T, r *Ranking, w *walk, n Node) {
	t.Helper()
	for _, b := range w.live {
		if b.children == 0 && b.holds == 0 && r.Class(b.node) == r.Class(n) && r.at(b.node).key < r.at(n).key {
			t.Fatalf("victim %d, and %d of its class leaves before it", n, b.node)
		}
	}
}

func isDeterministic(t *testing.T, name string) {
	a, b := newWalk(t, name, 8<<20, 3), newWalk(t, name, 8<<20, 3)
	for step := range 30_000 {
		x, xOK := a.step()
		if y, yOK := b.step(); x != y || xOK != yOK {
			t.Fatalf("step %d: victim %d %v and %d %v of the same events", step, x, xOK, y, yOK)
		}
	}
}

// A policy must survive a caller that names blocks it does not have.
func unknownNodesDoNothing(t *testing.T, name string) {
	p := must(t, name, 100)
	gone, kept := p.Insert(0, Meta{Size: 1}), p.Insert(0, Meta{Size: 1})
	p.Remove(gone, true)
	for _, n := range []Node{gone, 7, NoNode} {
		p.Remove(n, true)
		p.Update(n, Meta{Refs: 9})
		p.Hold(n)
		p.Release(n)
		p.Access(requestFor(0, 3, n, kept, n))
	}
	p.Access(requestFor(0, 5))
	p.Access(&Request{Hits: -1, Chain: []Ref{{Node: kept}}})
	p.Release(kept)
	if got, ok := p.Victim(); !ok || got != kept || p.Len() != 1 {
		t.Errorf("victim %d %v of %d blocks, want %d of 1", got, ok, p.Len(), kept)
	}
	p.Hold(kept)
	if _, ok := p.Victim(); ok {
		t.Error("a release without a hold was kept for later")
	}
}

// What was old when it came leaves before all else, in the order in which it came, until it
// is used.
func oldLeavesFirst(t *testing.T, name string) {
	p := must(t, name, 0)
	p.Access(&Request{Hits: 2, Chain: []Ref{{Fingerprint: 2, Node: NoNode}, {Fingerprint: 3, Node: NoNode}}})
	young := p.Insert(0, Meta{Fingerprint: 1, Size: 1, Refs: 1})
	first := p.Insert(0, Meta{Fingerprint: 2, Size: 1, Refs: 3, Prefix: true, Old: true})
	used := p.Insert(0, Meta{Fingerprint: 3, Size: 1, Refs: 1, Old: true})
	last := p.Insert(0, Meta{Fingerprint: 4, Size: 1, Refs: 1, Old: true})
	p.Update(last, Meta{Fingerprint: 4, Size: 1, Refs: 2})
	p.Access(requestFor(0, 0, used))
	for _, want := range []Node{first, last} {
		if n, ok := p.Victim(); !ok || n != want {
			t.Errorf("victim %d, want %d", n, want)
		}
		p.Remove(want, true)
	}
	left := map[Node]bool{}
	for p.Len() > 0 {
		n, ok := p.Victim()
		if !ok {
			t.Fatal("no victim")
		}
		left[n] = true
		p.Remove(n, true)
	}
	if !left[young] || !left[used] || len(left) != 2 {
		t.Errorf("left at last: %v, want %d and %d", left, young, used)
	}
}

func steadyStateAllocatesNothing(t *testing.T, name string) {
	const blocks = 1200
	s := fill(t, name, blocks)
	for range 20_000 {
		s.serve()
	}
	if got := testing.AllocsPerRun(2000, func() { s.serve() }); got != 0 {
		t.Errorf("%v allocations per request", got)
	}
}

// mostBytes is what a policy may take for a block that it has or remembers.
const mostBytes = 64

func takesFewBytes(t *testing.T, name string) {
	p := must(t, name, 1<<40)
	before := heapBytes()
	for i := range uint64(400_000) {
		now := time.Duration(i) * time.Millisecond
		if i < 200_000 {
			p.Insert(now, Meta{Fingerprint: i, Size: 1 << 20})
		} else { // a ghost, where a policy remembers what is missing
			p.Access(&Request{Now: now, Hits: 1, Chain: []Ref{{Fingerprint: i, Node: NoNode}}})
		}
		if i != 130_000 && i != 199_999 && i != 399_999 {
			continue
		}
		tracked := p.Len() + countGhosts(p)
		got := float64(heapBytes()-before) / float64(tracked)
		t.Logf("%d blocks, %d ghosts: %.1f bytes each", p.Len(), tracked-p.Len(), got)
		// What is known of classes does not grow with the blocks.
		if got > mostBytes+float64(256<<10)/float64(tracked) {
			t.Errorf("%d blocks: %.1f bytes each, at most %d", tracked, got, mostBytes)
		}
	}
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// countGhosts is how many blocks a policy remembers that have left.
func countGhosts(p Policy) int {
	switch p := p.(type) {
	case *prefix:
		return p.known.len()
	case *arc:
		return p.left[0].len() + p.left[1].len()
	case *s3fifo:
		return p.left.len()
	}
	return 0
}

func ghostsAreBounded(t *testing.T, name string) {
	most := 0
	for _, size := range []int64{100, 20_000, 1 << 20} {
		const blocks = 200
		p := must(t, name, blocks*size)
		for i := range uint64(blocks * 40) {
			r := Request{Now: time.Duration(i) * time.Millisecond, Hits: 1, Chain: []Ref{{Fingerprint: i, Size: size, Node: NoNode}}}
			p.Access(&r)
			if p.Len() == blocks {
				n, _ := p.Victim()
				p.Remove(n, true)
			}
			p.Insert(r.Now, Meta{Fingerprint: i, Size: size})
			ghosts := countGhosts(p)
			most = max(most, ghosts)
			// One block was asked for before it came.
			if ghosts > ghostsPerBlock*p.Len()+1 || int64(ghosts-1)*ghostBytes > blocks*size/ghostShare {
				t.Fatalf("%d ghosts beside %d blocks of %d bytes", ghosts, p.Len(), size)
			}
		}
		for p.Len() > 0 {
			n, _ := p.Victim()
			p.Remove(n, true)
		}
		if got := countGhosts(p); got > 0 {
			t.Errorf("%d ghosts and no block", got)
		}
	}
	if remembers := name == Prefix || name == ARC || name == S3FIFO; remembers != (most > 0) {
		t.Errorf("%d ghosts at most", most)
	}
}

// Blocks that have a name in common are blocks all the same.
func equalFingerprintsWork(t *testing.T, name string) {
	p := must(t, name, 0)
	seen := map[Node]bool{}
	for range 10_000 {
		n := p.Insert(0, Meta{Fingerprint: 7, Size: 1})
		if seen[n] {
			t.Fatalf("node %d twice", n)
		}
		seen[n] = true
	}
	for p.Len() > 0 {
		n, ok := p.Victim()
		if !ok || !seen[n] {
			t.Fatalf("victim %d %v", n, ok)
		}
		delete(seen, n)
		p.Remove(n, true)
	}
}

func TestNewRefuses(t *testing.T) {
	_, err := New("mru", 1)
	var unknown *UnknownError
	if !errors.As(err, &unknown) || unknown.Name != "mru" {
		t.Fatalf("unknown policy: %v", err)
	}
	for _, name := range AllNames() {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name %s: %v", name, err)
		}
	}
	var capacity *CapacityError
	if _, err := New(LRU, -1); !errors.As(err, &capacity) || capacity.Bytes != -1 {
		t.Errorf("negative capacity: %v", err)
	}
	if p := must(t, "", 0); p.Name() != Names()[0] {
		t.Errorf("the default is %s, not the first of Names", p.Name())
	}
}
