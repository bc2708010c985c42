package residency_test

import (
	"slices"
	"testing"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
)

func budget(o *residency.Options) { o.Limits.ColdBytes = 100_000 }

// below is the key of the block that the cold tier gives up next, "" for none.
func below(r *parttest.Rank) string {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if b := r.Cold.VictimLocked(); b != nil {
		return b.Names()[0].Key()
	}
	return ""
}

// The cold tier holds what memory has, what a chain or a lease needs, and what is
// being read, for as long as that is so.
func TestColdHolds(t *testing.T) {
	r := parttest.New(t, parttest.NewFiles(t).Use, budget)
	r.PutCold(parttest.Name("a"), parttest.Data(1, 1000))
	b := r.PutCold(parttest.Name("b", "a"), parttest.Data(2, 1000))
	want := func(what, key string) {
		t.Helper()
		if got := below(r); got != key {
			t.Errorf("%s: %q leaves next, want %q", what, got, key)
		}
		parttest.Check(t, r.State)
	}
	want("a chain leaves from its end", "b")
	r.Put(parttest.Name("b", "a"), parttest.Data(2, 1000))
	want("the end is in memory", "")
	r.Mu.Lock()
	r.DropLocked(b, r.Last(), true)
	r.PlacementChangedLocked(b)
	r.Mu.Unlock()
	want("it is not any more", "b")
	r.Mu.Lock()
	b.Loading = true
	r.Cold.SyncHoldLocked(b)
	r.Mu.Unlock()
	want("it is being read", "")
	r.Mu.Lock()
	b.Loading = false
	r.Cold.SyncHoldLocked(b)
	r.Mu.Names.Lease(r.Mu.Names.Get("ns", "b"), "me", r.Now().Add(time.Minute))
	r.ApplyLocked()
	r.Mu.Unlock()
	want("it is leased", "")
	r.Mu.Lock()
	r.Mu.Names.EndOwner("me", 1)
	r.ApplyLocked()
	r.Mu.Unlock()
	want("the lease ended", "b")
	r.Delete("b")
	want("the end is gone", "a")
}

// Blocks whose equal bytes hold each other in a ring can leave all the same.
func TestRingsLeave(t *testing.T) {
	r := parttest.New(t, parttest.NewFiles(t).Use, budget)
	p, q := parttest.Data(1, 1000), parttest.Data(2, 1000)
	r.PutCold(parttest.Name("a"), p)
	r.PutCold(parttest.Name("b", "a"), q)
	r.Mu.Lock()
	n := parttest.Name("c", "b")
	n.Seq = r.TickLocked()
	r.BindRecordedLocked(n, residency.BlockOf(r.Mu.Names.Get("ns", "a")))
	r.Mu.Unlock()
	if got := below(r); got == "" || got == "b" {
		t.Errorf("%q leaves, want the block with two names", got)
	}
}

// What an earlier run left leaves before what is new, until it is used.
func TestWhatIsOldLeavesFirst(t *testing.T) {
	r := parttest.New(t, parttest.NewFiles(t).Use, budget)
	young := r.PutCold(parttest.Name("young"), parttest.Data(1, 1000))
	r.Mu.Lock()
	r.Cold.LeaveLocked(young, false)
	r.Cold.StoredLocked(young)
	r.Mu.Unlock()
	old := r.PutCold(parttest.Name("old"), parttest.Data(2, 2000))
	r.Mu.Lock()
	r.Cold.LeaveLocked(old, false)
	r.Cold.AdoptLocked(old)
	r.Mu.Unlock()
	if got := below(r); got != "old" || r.Cold.Old != 2000 || r.Cold.Bytes != 3000 {
		t.Errorf("%q leaves first, %d of %d bytes are old", got, r.Cold.Old, r.Cold.Bytes)
	}
	r.Mu.Lock()
	r.Cold.UsedLocked(old)
	r.Cold.UsedLocked(old)
	r.Mu.Unlock()
	if r.Cold.Old != 0 {
		t.Errorf("%d bytes are old", r.Cold.Old)
	}
	parttest.Check(t, r.State)
}

// A lease holds a block in the last memory tier only while no slower tier would take
// it, and no more bytes than the leases' share.
func TestLeasesHoldWhatWouldBeLost(t *testing.T) {
	const size = 100_000
	r := parttest.New(t, parttest.NewFiles(t).Use, func(o *residency.Options) { o.Limits.LeaseShare = float64(2*size+size/2) / parttest.MemoryBytes })
	keys := []string{"a", "b", "c"}
	for i, k := range keys {
		r.Put(parttest.Name(k), parttest.Data(uint64(i), size))
	}
	r.Mu.Lock()
	for i, k := range keys {
		n := r.Mu.Names.Get("ns", k)
		r.Mu.Names.Lease(n, k, r.Now().Add(time.Duration(i+1)*time.Minute))
		r.ApplyLocked()
		r.Leases.HoldOfLocked(n)
	}
	held := r.Mu.Names.HeldBytes()
	r.Mu.Writes.ColdDown = r.Now().Add(residency.ColdRetry)
	for _, k := range keys {
		r.Leases.HoldLocked(residency.BlockOf(r.Mu.Names.Get("ns", k)))
	}
	down := r.Mu.Names.HeldBytes()
	r.Mu.Unlock()
	if held != 0 || down != 2*size {
		t.Errorf("%d bytes are held while the cold tier takes blocks, %d while it does not", held, down)
	}
	if got := next(r, r.Last()); got != "a" { // whose lease ends first
		t.Errorf("%q leaves next", got)
	}
	parttest.Check(t, r.State)
}

// recorder is a policy that keeps the requests it is passed.
type recorder struct {
	policy.Policy
	requests []policy.Request
}

func (p *recorder) Access(r *policy.Request) {
	one := *r
	one.Chain = slices.Clone(r.Chain)
	p.requests = append(p.requests, one)
	p.Policy.Access(r)
}

// Each tier's policy gets a request once, with the blocks that the tier has and those
// that it misses, head first.
func TestRequestsReachEveryPolicy(t *testing.T) {
	var all []*recorder
	r := parttest.New(t, parttest.NewFiles(t).Use, budget, func(o *residency.Options) {
		o.NewPolicy = func(name string, capacity int64) (policy.Policy, error) {
			p, err := policy.New(name, capacity)
			all = append(all, &recorder{Policy: p})
			return all[len(all)-1], err
		}
	})
	r.PutCold(parttest.Name("a"), parttest.Data(1, 1000))
	b := r.Put(parttest.Name("b", "a"), parttest.Data(2, 1000))
	r.Mu.Lock()
	for _, k := range []string{"a", "b"} {
		r.Requests.AddLocked(residency.BlockOf(r.Mu.Names.Get("ns", k)))
	}
	r.Requests.AddMissLocked(block.Fingerprint("ns", "c"))
	r.Requests.PassLocked(true)
	r.Requests.PassLocked(true) // there is nothing more
	r.Mu.Unlock()
	r.Requests.Stored(b.Names()...)
	for i, here := range [][]bool{{false, true, false}, {true, false, false}} {
		if len(all[i].requests) != 2 {
			t.Fatalf("policy %d got %d requests", i, len(all[i].requests))
		}
		asked, stored := all[i].requests[0], all[i].requests[1]
		if asked.Hits != 3 || stored.Hits != 0 || len(stored.Chain) != 1 {
			t.Errorf("policy %d got %+v, then %+v", i, asked, stored)
		}
		for j, k := range []string{"a", "b", "c"} {
			if ref := asked.Chain[j]; ref.Fingerprint != block.Fingerprint("ns", k) || (ref.Node != policy.NoNode) != here[j] {
				t.Errorf("policy %d, block %s: %+v", i, k, ref)
			}
		}
	}
}
