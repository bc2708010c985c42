package names

import (
	"fmt"
	"testing"
	"time"

	"cascadekv/internal/block"
)

// Whether a name would be its own ancestor is looked for in a bounded part of the
// chain. What is not found out is not chained.
func TestTheWalkUpAChainIsBounded(t *testing.T) {
	sp := New(0).AddSpace("ns")
	var tail *Name
	for i := range maxWalk + 10 {
		n := sp.node(fmt.Sprint(i))
		if n.parent = tail; tail != nil {
			tail.children++
		}
		tail = n
	}
	other := sp.node("other")
	other.children = 1
	if other.setParent(tail.Key()); other.parent != nil {
		t.Error("chained without a look at all ancestors")
	}
	if other.setParent("100"); other.parent == nil || other.parent.Key() != "100" {
		t.Error("not chained")
	}
	if sp.Get("0").setParent("100"); sp.Get("0").parent != nil {
		t.Error("a ring")
	}
	fresh := sp.node("fresh")
	if fresh.setParent(tail.Key()); fresh.parent != tail {
		t.Error("a name without children cannot be anybody's ancestor")
	}
}

func discard(g *Graph) {
	for _, ok := g.Next(); ok; _, ok = g.Next() {
	}
}

// What is recorded again of a copy is younger than a withdrawal of what is lost, which may have been moved
// some times since, hardly so, and has the put stamp of before. What two ranks record is mostly not of one tick.
func TestReclaim(t *testing.T) {
	g := New(0)
	for _, copied := range []bool{false, true} {
		n := g.Put(block.Name{Namespace: "ns", Key: "a"}, false, &Block{}, begin)
		if copied {
			n = g.Copy(block.Name{Namespace: "ns", Key: "b", Seq: 7}, &Block{})
		} else {
			g.SetCopied(n)
		}
		put, known := n.Put(), max(n.Put(), n.Seq())
		discard(g)
		g.Reclaim(n)
		c, changed := g.Next()
		if by := n.Seq() - known; n.Copied() || n.Put() != put || by < reclaimedBy || by >= reclaimedBy+reclaimedSpread || by%2 > 0 || !changed || c.Kind != Link || c.Name != n {
			t.Errorf("copied %v, put %d, recorded %d later; want %d; %+v", n.Copied(), n.Put(), by, put, c)
		}
		if tick := g.Tick(begin); tick <= n.Seq() {
			t.Errorf("a later tick is %d", tick)
		}
		discard(g)
	}
}

// A record that is raised is written again, and the name ends when it should.
func TestRaise(t *testing.T) {
	g := New(0)
	n := g.Put(block.Name{Namespace: "ns", Key: "a", Expires: begin.Add(time.Hour)}, false, &Block{}, begin)
	put, seq := n.Put(), n.Seq()
	discard(g)
	for _, to := range []uint64{seq + 2, seq} {
		g.Raise(n, to)
		if c, changed := g.Next(); n.Seq() != seq+2 || n.Put() != put || !changed || c.Kind != Link || c.Name != n {
			t.Errorf("put %d, recorded %d; want %d, %d; %+v", n.Put(), n.Seq(), put, seq+2, c)
		}
		discard(g)
	}
	if tick := g.Tick(begin); tick <= n.Seq() {
		t.Errorf("a later tick is %d", tick)
	}
	if g.NextExpired(begin.Add(time.Hour)) != n {
		t.Error("the name did not expire")
	}
}

// A name that gets another end again and again leaves nothing behind.
func TestStaleExpiriesAreDropped(t *testing.T) {
	g := New(0)
	n := g.Put(block.Name{Namespace: "ns", Key: "a"}, false, &Block{}, begin)
	for i := range 20_000 {
		g.Expire(n, begin.Add(time.Duration(i+1)*time.Hour), begin)
		discard(g)
	}
	if len(g.expiries) > 2*staleExpiries {
		t.Errorf("%d expiries of one name", len(g.expiries))
	}
	if g.NextExpired(begin.Add(19_999*time.Hour)) != nil {
		t.Error("ended before its time")
	}
	if g.NextExpired(begin.Add(20_000*time.Hour)) != n {
		t.Error("the name did not expire")
	}
}

// However many ask for a name, the next one looks at a bounded number of leases,
// and the name stays for as long as was promised to any of them.
func TestLeasesOfOneNameAreBounded(t *testing.T) {
	g := New(0)
	n := g.Put(block.Name{Namespace: "ns", Key: "a"}, false, &Block{}, begin)
	for i := range 1000 {
		g.Lease(n, fmt.Sprint(i), begin.Add(time.Duration(i)))
	}
	if g.Leases() != MaxOwners+1 {
		t.Errorf("%d leases", g.Leases())
	}
	for i := range 1000 {
		g.EndOwner(fmt.Sprint(i), 1)
	}
	if g.Leases() != 1 || g.EndLease(begin.Add(998)) || !g.EndLease(begin.Add(999)) || len(g.owned) != 0 {
		t.Errorf("%d leases, of %d owners", g.Leases(), len(g.owned))
	}
}

// Namespaces without names are kept while there are few.
func TestEmptySpaces(t *testing.T) {
	g := New(0)
	for i := range 2 * KeepSpaces {
		g.Withdraw(g.Put(block.Name{Namespace: fmt.Sprint(i), Key: "a"}, false, &Block{}, begin), 0)
		discard(g)
	}
	if n := g.SpaceCount(); n != KeepSpaces {
		t.Errorf("%d namespaces, want %d", n, KeepSpaces)
	}
}

// The list of changes keeps its memory: operations on names that are there
// allocate nothing.
// TestInfer: a parent that is inferred counts as one that was named, until one is named.
func TestInfer(t *testing.T) {
	g := New(0)
	head, next := &Block{}, &Block{}
	a := g.Put(block.Name{Namespace: "ns", Key: "a"}, false, head, begin)
	b := g.Put(block.Name{Namespace: "ns", Key: "b"}, false, next, begin)
	if a.Space().NamesParents || !g.Infer(b, "a") || g.Infer(b, "x") || g.Infer(a, "b") || g.Infer(a, "a") {
		t.Fatal("inferred, or not, against the rule")
	}
	if !b.Inferred() || b.ParentKey() != "a" || b.Depth() != 1 || next.Depth() != 1 || !head.Leads() || b.Seq() == 0 {
		t.Errorf("inferred: %+v", b.Record())
	}
	seq := b.Seq()
	if b.Put() != seq {
		t.Error("a hint is no put")
	}
	g.Put(block.Name{Namespace: "ns", Key: "b", Parent: "c"}, false, next, begin)
	if b.Inferred() || b.ParentKey() != "c" || head.Leads() || !b.Space().NamesParents {
		t.Errorf("named: %+v", b.Record())
	}
	discard(g)
	if err := g.Verify(); err != nil {
		t.Error(err)
	}
}

func TestOperationsDoNotAllocate(t *testing.T) {
	g := New(0)
	a, b := &Block{}, &Block{}
	g.Enter(a, 0)
	g.Enter(b, 0)
	r := block.Name{Namespace: "ns", Key: "a", Parent: "p"}
	g.Put(block.Name{Namespace: "ns", Key: "p"}, false, &Block{}, begin)
	if n := testing.AllocsPerRun(100, func() {
		g.Put(r, false, a, begin)
		discard(g)
		g.Put(r, false, b, begin)
		discard(g)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
