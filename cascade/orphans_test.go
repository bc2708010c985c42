package cascade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cascadekv/cascade/residency"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// segmentBytes adds up the files of a campaign.
func (c *campaign) segmentBytes() (total int64) {
	c.t.Helper()
	err := filepath.WalkDir(c.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil // it may go meanwhile
		}
		if info, err := e.Info(); err == nil {
			total += info.Size()
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return total
}

// upkeep is a turn of the background.
func upkeep(r *rig) {
	r.space.AdoptDue(context.Background())
	r.space.Shrink()
	for r.space.MergeOnce(context.Background()) {
	}
}

// TestBudgetOfACampaign: sessions with ever other rank numbers, of which each
// stays within the budget, stay within it together; what goes is the oldest, tails
// before heads.
func TestBudgetOfACampaign(t *testing.T) {
	c := newCampaign(t)
	const (
		block, each = 30_000, 100
		budget      = 16 << 20
	)
	limit := func(o *Options) { o.Limits.ColdBytes = budget }
	for rank := uint32(1); rank <= 8; rank++ { // 8 times 3 MB
		r := c.session(rank, 8<<20, limit)
		r.chain(fmt.Sprint("of", rank, "."), 0, each, uint64(rank)*1000)
		c.end(r)
	}
	if n := c.segmentBytes(); n < budget*5/4 {
		t.Fatalf("the campaign has %d bytes", n)
	}
	r := c.session(0, 8<<20, limit, func(o *Options) { o.Capacity = 10 * block })
	c.takeIn(r)
	r.chain("mine.", 0, each, 9000)
	r.drained()
	for i := range each { // nothing of its own is in memory after that
		r.want(fmt.Sprint("of8.", i), data(8000+uint64(i), block))
	}
	upkeep(r)
	eventually(t, "the campaign is within its budget", func() bool { upkeep(r); return c.segmentBytes() <= budget })
	st := r.Stats().Orphans
	if st.Inherited == 0 || st.Inherited == 8 || st.Parts != 8-int(st.Inherited) {
		t.Errorf("%+v", st)
	}
	c.takeIn(r)
	if st := r.Stats().Orphans; st.Runs != 0 {
		t.Errorf("what it inherited counts as another's: %+v", st)
	}
	hits := func(prefix string) int {
		var keys []string
		for i := range each {
			keys = append(keys, fmt.Sprint(prefix, i))
		}
		return r.Probe(t.Context(), "ns", keys).Hits
	}
	if mine, last, first := hits("mine."), hits("of8."), hits("of1."); mine != each || last != each || first > each/2 {
		t.Errorf("hits: %d of its own, %d of the newest, %d of the oldest", mine, last, first)
	}
	for i := range hits("of2.") {
		r.want(fmt.Sprint("of2.", i), data(2000+uint64(i), block))
	}
	for i := range each {
		r.want(fmt.Sprint("mine.", i), data(9000+uint64(i), block))
	}
	c.end(r)
}

// TestHeadsOfOthersChains: sessions each go on with the chains that the first one
// began. When what it left is inherited, and the rest is not, the heads stay: no
// chain gets a hole.
func TestHeadsOfOthersChains(t *testing.T) {
	c := newCampaign(t)
	const block, chains, each, budget = 30_000, 10, 4, 4 << 20
	limit := func(o *Options) { o.Limits.ColdBytes = budget }
	key := func(chain, i int) string { return fmt.Sprint("chain", chain, ".", i) }
	for session := range 4 {
		r := c.session(uint32(session+1), 8<<20, limit)
		for chain := range chains {
			r.chain(fmt.Sprint("chain", chain, "."), session*each, (session+1)*each, uint64(1000*chain+session*each))
		}
		r.chain(fmt.Sprint("ended", session, "."), 0, 10, uint64(50_000+1000*session)) // that nobody went on with
		c.end(r)
	}
	r := c.session(0, 8<<20, limit)
	c.takeIn(r)
	eventually(t, "the campaign is within its budget", func() bool { upkeep(r); return c.segmentBytes() <= budget })
	if st := r.Stats().Orphans; st.Inherited == 0 {
		t.Errorf("%+v", st)
	}
	c.takeIn(r)
	left := 0
	for chain := range chains {
		hole := false
		for i := range 4 * each {
			if r.Probe(t.Context(), "ns", []string{key(chain, i)}).Hits == 0 {
				hole = true
			} else if left++; hole {
				t.Errorf("%s lies behind a hole", key(chain, i))
			}
		}
	}
	if left < chains*each {
		t.Errorf("%d blocks are left", left)
	}
	c.end(r)
}

// TestLiveJobsShareABudget: what a live run of another job takes is left to it,
// and counts.
func TestLiveJobsShareABudget(t *testing.T) {
	c := newCampaign(t)
	const budget = 16 << 20
	limit := func(o *Options) { o.Limits.ColdBytes = budget }
	other := c.session(1, 8<<20, limit)
	other.chain("other.", 0, 100, 1000)
	other.drained()
	r := c.session(0, 8<<20, limit)
	c.takeIn(r)
	upkeep(r)
	st := r.Stats().Orphans
	if st.Runs != 1 || st.RunBytes < 3_000_000 || st.Inherited != 0 || st.Budget != budget-st.RunBytes {
		t.Errorf("%+v", st)
	}
	for i := range 100 {
		r.want(fmt.Sprint("other.", i), data(1000+uint64(i), 30_000))
	}
	c.end(other)
	c.takeIn(r)
	if st := r.Stats().Orphans; st.Runs != 0 || st.Parts != 1 || st.Budget != budget-st.Bytes {
		t.Errorf("once it ended: %+v", st)
	}
	c.end(r)
}

// TestShortageTakesWhatIsLeftFirst: on a full file system, without a budget, what
// ended runs left goes before what this one put.
func TestShortageTakesWhatIsLeftFirst(t *testing.T) {
	c := newCampaign(t)
	const block, each, total = 30_000, 100, 14 << 20
	bounded := vfstest.NewBounded(vfs.OS{}, total)
	c.fs = vfstest.NewFault(bounded)
	for rank := uint32(1); rank <= 3; rank++ { // 3 times 3 MB
		r := c.session(rank, 8<<20)
		r.chain(fmt.Sprint("of", rank, "."), 0, each, uint64(rank)*1000)
		c.end(r)
	}
	r := c.session(0, 4<<20)
	c.takeIn(r)
	for i := 0; i < 3*each; i += 5 { // 9 MB more
		n := i / each
		r.chain(fmt.Sprint("mine", n, "."), i%each, i%each+5, uint64(20_000+n*1000))
		eventually(t, "the cold tier has room", func() bool {
			c.later(residency.ColdRetry)
			_, err := r.Drain(t.Context())
			if err != nil && !errors.Is(err, tiers.ErrFull) {
				t.Fatal(err)
			}
			r.space.Shrink()
			r.space.MergeAll(t.Context())
			return err == nil
		})
	}
	st := r.Stats()
	if st.Orphans == nil || st.Orphans.Inherited == 0 || st.Corrupt > 0 {
		t.Errorf("orphans %+v, %d corrupt", st.Orphans, st.Corrupt)
	}
	mine := 0
	for n := range 3 {
		for i := range each {
			if r.Contains(t.Context(), "ns", fmt.Sprint("mine", n, ".", i)) {
				mine++
				r.want(fmt.Sprint("mine", n, ".", i), data(uint64(20_000+n*1000+i), block))
			}
		}
	}
	r.Store.state.Mu.Lock()
	old := r.state.Cold.Old
	r.Store.state.Mu.Unlock()
	if mine < 3*each/2 || mine+int(st.Lost) < 3*each && old > 0 {
		t.Errorf("%d of %d of its own blocks are left, %d were lost in memory; %d bytes of others'", mine, 3*each, st.Lost, old)
	}
	c.end(r, tiers.ErrFull) // there may be no room for a footer
}

// TestNothingIsInheritedWithoutNeed: neither without a budget nor within it.
func TestNothingIsInheritedWithoutNeed(t *testing.T) {
	for _, budget := range []int64{0, 1 << 30} {
		c := newCampaign(t)
		left := c.session(1, 8<<20)
		left.chain("left.", 0, 50, 1000)
		c.end(left)
		r := c.session(0, 8<<20, func(o *Options) { o.Limits.ColdBytes = budget })
		c.takeIn(r)
		upkeep(r)
		if st := r.Stats().Orphans; st != nil && st.Inherited > 0 || (st != nil) != (budget > 0) {
			t.Errorf("budget %d: %+v", budget, st)
		}
		c.end(r)
	}
}

// TestInheritedNamesAreNotFoundTwice: a name that was inherited and then
// withdrawn does not come back from the catalogue.
func TestInheritedNamesAreNotFoundTwice(t *testing.T) {
	c := newCampaign(t)
	left := c.session(1, 8<<20)
	left.chain("left.", 0, 20, 1000)
	c.end(left)
	r := c.session(0, 8<<20, func(o *Options) { o.Limits.ColdBytes = 1 << 30 })
	c.takeIn(r)
	parts, err := r.Parts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	part := parts[slices.IndexFunc(parts, func(p tiers.Part) bool { return p.Rank == 1 })]
	if _, ok, err := r.space.AdoptOrphan(t.Context(), part); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if !r.Delete(t.Context(), "ns", "left.19") {
		t.Fatal("nothing to delete")
	}
	check := func(when string) {
		t.Helper()
		if r.Probe(t.Context(), "ns", []string{"left.19"}).Hits != 0 {
			t.Errorf("%s: the deleted name is found", when)
		}
		r.want("left.18", data(1018, 30_000))
	}
	check("before the next round")
	c.takeIn(r)
	check("after it")
	c.end(r)
	r = c.session(0, 8<<20)
	c.takeIn(r)
	check("in the next session")
	c.end(r)
	if entries, err := os.ReadDir(c.dir); err != nil || len(entries) == 0 {
		t.Error("nothing is left", err)
	}
}
