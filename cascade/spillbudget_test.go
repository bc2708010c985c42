package cascade

import (
	"fmt"
	"slices"
	"testing"

	"cascadekv/internal/block"
)

// TestBudgetReachesSpilledFiles: with a budget the oldest spilled blocks leave, and the
// newest stay.
func TestBudgetReachesSpilledFiles(t *testing.T) {
	c := newCampaign(t)
	const budget = 12 << 20
	r := c.small(func(o *Options) { o.Limits.ColdBytes = budget })
	for part := range 30 {
		r.chain(fmt.Sprint("p", part, "."), 0, 30, uint64(part)*1000)
		c.spill(r)
		r.space.Shrink()
		r.space.MergeAll(t.Context())
		// What was merged is unlinked in the background.
		eventually(t, fmt.Sprint("the budget is kept after part ", part), func() bool { return r.state.Cold.Files.Usage().Used <= budget+4<<20 })
	}
	there := func(part int) (n int) {
		for i := range 30 {
			if r.Contains(t.Context(), "ns", fmt.Sprint("p", part, ".", i)) {
				n++
			}
		}
		return n
	}
	old := 0 // a block that has left is found until its file is merged
	for part := range 6 {
		old += there(part)
	}
	if old > 60 || there(29) != 30 || there(28) != 30 {
		t.Errorf("%d of the 180 oldest blocks stay, %d and %d of the newest", old, there(28), there(29))
	}
	c.end(r)
}

// TestBudgetKeepsSpilledBlocksThatAreUsed: of the oldest blocks those that are read now and
// then stay, though nothing is kept in memory of any between two reads.
func TestBudgetKeepsSpilledBlocksThatAreUsed(t *testing.T) {
	c := newCampaign(t)
	const budget = 12 << 20
	r := c.small(func(o *Options) { o.Limits.ColdBytes = budget })
	used := func(i int) bool { return i < 8 } // heads of chains, which leave last
	for part := range 30 {
		r.chain(fmt.Sprint("p", part, "."), 0, 30, uint64(part)*1000)
		c.spill(r)
		for i := range 30 {
			if used(i) && part%3 == 1 {
				r.want(fmt.Sprint("p0.", i), data(uint64(i), 30_000))
			}
		}
		r.space.Shrink()
		r.space.MergeAll(t.Context())
	}
	there := func(part int) (of, others int) {
		for i := range 30 {
			switch found := r.Contains(t.Context(), "ns", fmt.Sprint("p", part, ".", i)); {
			case found && used(i):
				of++
			case found:
				others++
			}
		}
		return of, others
	}
	if n, others := there(0); n != 8 || others > 4 {
		t.Errorf("%d of 8 that were used, and %d others, stay", n, others)
	}
	if n, _ := there(1); n > 4 {
		t.Errorf("%d of 8 stay that were not used", n)
	}
	checkInvariants(t, r.Store)
	c.end(r)
}

// TestUseIsNoPut: of blocks of which the catalogue alone knows those count as used lately that were got, and not those
// that were in memory when it came to know them because they had just been put.
func TestUseIsNoPut(t *testing.T) {
	c := newCampaign(t)
	r := c.small()
	for part := range 12 {
		r.chain(fmt.Sprint("p", part, "."), 0, 30, uint64(part)*1000)
		c.spill(r)
		if part > 2 {
			r.want("p1.3", data(1003, spillBlock))
		}
	}
	for part := range 8 {
		for i := range 30 {
			if n := uint64(part*1000 + i); r.onlySpilled(fmt.Sprint("p", part, ".", i)) {
				if used := r.state.Cold.LastUse(block.Sum(block.Bits128, data(n, spillBlock))) > 0; used != (n == 1003) {
					t.Errorf("block %d counts as used: %v", n, used)
				}
			}
		}
	}
	c.end(r)
}

// TestMergeBreaksNoChain: a file that is loaded because most of it stands for nothing has heads of chains that go on in
// files that stay spilled. However little room the budget leaves, the heads do not leave before those.
func TestMergeBreaksNoChain(t *testing.T) {
	c := newCampaign(t)
	r := c.small(func(o *Options) { o.Limits.ColdBytes = 1 << 30 })
	const dead, head, chain = 24, 4, 280 // the first file is of what is dead, and of the head
	r.chain("dead", 0, dead, 10_000)
	r.chain("k", 0, head, 1000)
	r.drained()
	r.chain("k", head, chain, 1000)
	c.spill(r)
	for i := range dead {
		if !r.Delete(t.Context(), "ns", fmt.Sprint("dead", i)) {
			t.Fatal("no block", i)
		}
	}
	if !r.onlySpilled(fmt.Sprint("k", chain/2)) {
		t.Fatal("the chain is not spilled")
	}
	first := r.space.LookSpilled()[0].Path
	eventually(t, "the first file is worth merging", func() bool {
		r.drained()
		files := r.space.LookSpilled()
		return files[0].Wasted || files[0].Path != first // the store's own merger was sooner
	})
	r.limit(func(l *Limits) {
		l.ColdBytes = 0
		for _, f := range r.space.LookSpilled()[1:] {
			l.ColdBytes += f.Bytes
		}
	})
	r.space.ReloadWasted(t.Context())
	for _, when := range []string{"its file was loaded", "that was merged"} {
		r.space.Shrink()
		there := make([]bool, chain)
		for i := range there {
			there[i] = r.Contains(t.Context(), "ns", fmt.Sprint("k", i))
		}
		if first := slices.Index(there, true); first != 0 {
			t.Errorf("once %s the chain begins with its block %d", when, first)
		}
		r.space.MergeAll(t.Context())
	}
	c.end(r)
}
