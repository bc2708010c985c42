package load

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

// However many ask for a block, it is read once, and all of them get it; it is in
// memory then.
func TestABlockIsReadOnce(t *testing.T) {
	r := newRank(t)
	p := parttest.Data(1, size)
	b := r.PutCold(parttest.Name("a"), p)
	goOn := r.files.stop()
	var all []*Fetch
	for range 20 {
		all = append(all, r.join(eviction.CopyOnly, "a")...)
	}
	r.Mu.Lock()
	if waiting := r.WaitingColdLocked(b); waiting != 20 || !b.Loading {
		t.Errorf("%d wait, on its way: %v", waiting, b.Loading)
	}
	r.Mu.Unlock()
	goOn()
	for _, f := range all {
		r.wants(r.Await(t.Context(), f), p, "host")
	}
	if got := r.files.reads(); !slices.Equal(got, []int{1}) {
		t.Errorf("read %v", got)
	}
	if m := r.Last(); !b.In(m.Index) || b.Loading || m.Stats.Promoted != 1 {
		t.Errorf("in memory: %v; %+v", b.In(m.Index), m.Stats)
	}
	r.idle()
}

// Once a part of a request is over the budget of reads it is a miss with all that comes after it,
// so that what is read has no hole, and nothing counts for it. The tier has no error.
func TestPartsKeepTheBudget(t *testing.T) {
	r := newRank(t)
	r.Limit(func(l *residency.Limits) { l.ReadRate = 1 })
	const n = 2*PartBlocks + 5
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprint(i))
		r.PutCold(parttest.Name(keys[i]), parttest.Data(uint64(i), 64))
	}
	for i, f := range r.join(eviction.CopyOnly, keys...) {
		if v := r.Await(t.Context(), f); i < PartBlocks {
			r.wants(v, parttest.Data(uint64(i), 64), "host")
		} else if v != nil {
			t.Fatalf("block %d is read", i)
		}
	}
	if left := r.Cold.Reads.Left(); !slices.Equal(r.files.reads(), []int{PartBlocks}) || left != 1-PartBlocks*64 {
		t.Errorf("%d bytes are left", left)
	}
	if lost := r.Count.Losses.Counts()[residency.StepSegment]["over_budget"]; lost != n-PartBlocks || r.Cold.Stats.Errors != 0 {
		t.Errorf("%d lost, %d errors", lost, r.Cold.Stats.Errors)
	}
	r.Advance(24 * time.Hour)
	for i, f := range r.join(eviction.CopyOnly, keys[PartBlocks:2*PartBlocks]...) {
		r.wants(r.Await(t.Context(), f), parttest.Data(uint64(PartBlocks+i), 64), "host")
	}
	r.idle()
}

// A request's blocks are read together, in parts of a bounded number.
func TestPartsAreBounded(t *testing.T) {
	r := newRank(t)
	const n = 2*PartBlocks + 5
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprint(i))
		r.PutCold(parttest.Name(keys[i]), parttest.Data(uint64(i), 64))
	}
	for i, f := range r.join(eviction.CopyOnly, keys...) {
		r.wants(r.Await(t.Context(), f), parttest.Data(uint64(i), 64), "host")
	}
	got := r.files.reads()
	slices.Sort(got)
	if !slices.Equal(got, []int{5, PartBlocks, PartBlocks}) {
		t.Errorf("read %v", got)
	}
	r.idle()
}

// What the tier cannot read is a miss. A block that it does not have any more is no
// block of it, and its name goes with the last copy.
func TestAReadThatFails(t *testing.T) {
	for name, x := range map[string]struct {
		err           error
		gone, corrupt bool
	}{
		"damaged":     {tiers.ErrCorrupt, true, true},
		"gone":        {tiers.ErrNotFound, true, false},
		"unavailable": {tiers.ErrUnavailable, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t)
			b := r.PutCold(parttest.Name("bad"), parttest.Data(1, size))
			r.PutCold(parttest.Name("good"), parttest.Data(2, size))
			r.files.fail[b.Info.ID] = x.err
			all := r.join(eviction.CopyOnly, "bad", "good")
			r.wants(r.Await(t.Context(), all[0]), nil, "")
			r.wants(r.Await(t.Context(), all[1]), parttest.Data(2, size), "host")
			r.idle()
			if (r.Block("bad") == nil) != x.gone || b.Cold == x.gone || (r.Count.Stats.Corrupt == 1) != x.corrupt || b.Busy != 0 {
				t.Errorf("named %v, in the cold tier %v, %d corrupt, busy %d", r.Block("bad") != nil, b.Cold, r.Count.Stats.Corrupt, b.Busy)
			}
			if u := r.Last().Memory.Usage(); u.Blocks != 1 {
				t.Errorf("%d blocks in memory", u.Blocks)
			}
		})
	}
}

// Reads that fail give their room back, in memory and in buffers.
func TestFailedReadsGiveTheirRoomBack(t *testing.T) {
	const large = 1 << 20
	r := newRank(t)
	b := r.PutCold(parttest.Name("bad"), parttest.Data(1, large))
	r.files.fail[b.Info.ID] = tiers.ErrUnavailable
	for range 2 * parttest.MemoryBytes / large {
		r.wants(r.Await(t.Context(), r.join(eviction.CopyOnly, "bad")[0]), nil, "")
	}
	if used := r.Last().Memory.Usage().Used; used >= large {
		t.Errorf("%d bytes of memory are in use", used)
	}
	if n, _ := r.buffers(); n != 0 {
		t.Errorf("%d buffers are in use", n)
	}
	r.idle()
}

// Who does not wait any longer misses; the read goes on for others, until it has taken
// too long.
func TestWaitingEnds(t *testing.T) {
	r := newRank(t)
	p := parttest.Data(1, size)
	r.PutCold(parttest.Name("a"), p)
	goOn := r.files.stop()
	first := r.join(eviction.CopyOnly, "a")[0]
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r.wants(r.Await(ended, first), nil, "")
	second := r.join(eviction.CopyOnly, "a")[0]
	if second != first {
		t.Error("the block is read twice")
	}
	goOn()
	r.wants(r.Await(t.Context(), second), p, "host")
	r.idle()

	r = newRank(t, func(o *residency.Options) { o.Limits.FetchDeadline = 20 * time.Millisecond })
	r.PutCold(parttest.Name("a"), p)
	defer r.files.stop()()
	r.wants(r.Await(t.Context(), r.join(eviction.CopyOnly, "a")[0]), nil, "")
	r.idle()
	if r.Block("a") == nil {
		t.Error("a block is given up because a read took too long")
	}
}

// Without room in memory, and where the policy does not admit it, a block is served
// from a buffer, which is given back with its last view.
func TestABlockThatIsNotKept(t *testing.T) {
	for name, change := range map[string]func(*residency.Options){
		"no room": func(o *residency.Options) { o.Capacity = 1 },
		"not admitted": func(o *residency.Options) {
			o.NewPolicy = func(name string, capacity int64) (policy.Policy, error) {
				p, err := policy.New(name, capacity)
				return refusing{p}, err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t, change)
			p := parttest.Data(1, size)
			b := r.PutCold(parttest.Name("a"), p)
			goOn := r.files.stop()
			all := append(r.join(eviction.CopyOnly, "a"), r.join(eviction.CopyOnly, "a")...)
			goOn()
			v, w := r.Await(t.Context(), all[0]), r.Await(t.Context(), all[1])
			r.wants(v, p, "host")
			if n, taken := r.buffers(); n != 1 || taken != 1 {
				t.Errorf("%d of %d buffers are in use", n, taken)
			}
			r.wants(w, p, "host")
			if n, _ := r.buffers(); n != 0 || b.InAny() || !b.Cold {
				t.Errorf("%d buffers are in use; in memory: %v", n, b.InAny())
			}
			r.idle()
		})
	}
}

// A block that waited for its turn to be read for longer than it may wait for room is kept all the same, where that takes
// no wait: what memory is full of may be copies of what the cold tier has.
func TestALateTurnTakesRoom(t *testing.T) {
	r := newRank(t, func(o *residency.Options) { o.Capacity, o.Policy = 2*size, "lru" })
	for i := range 2 {
		key := fmt.Sprint("copy", i)
		r.PutCold(parttest.Name(key), parttest.Data(uint64(i), size))
		r.wants(r.Await(t.Context(), r.join(eviction.Unheld, key)[0]), parttest.Data(uint64(i), size), "host")
	}
	r.Mu.Lock()
	r.Mu.Writes.SyncedSeq = r.Mu.Writes.LinkSeq
	r.Mu.Unlock()
	b := r.PutCold(parttest.Name("late"), parttest.Data(9, size))
	leave, err := r.fetching.take(t.Context(), fetchPlaces)
	if err != nil {
		t.Fatal(err)
	}
	f := r.join(eviction.Unheld, "late")[0]
	time.Sleep(2 * roomWait)
	leave()
	r.wants(r.Await(t.Context(), f), parttest.Data(9, size), "host")
	if n, taken := r.buffers(); !b.InAny() || taken != 0 {
		t.Errorf("in memory: %v; %d of %d buffers are in use", b.InAny(), n, taken)
	}
	r.idle()
}

// What is fetched ahead is not read if it would not stay in memory, and nothing is lost thereby. A get that joins is served.
func TestNothingIsReadAheadInVain(t *testing.T) {
	r := newRank(t, func(o *residency.Options) { o.Capacity, o.Policy = 2*size, "lru" })
	for i := range 2 {
		r.Put(parttest.Name(fmt.Sprint("dirty", i)), parttest.Data(uint64(i), size))
	}
	b := r.PutCold(parttest.Name("cold"), parttest.Data(9, size))
	for range 3 {
		PrefetchOwn(r.Loader, "ns", []string{"cold"}, true)
		r.idle()
	}
	blocks, bytes := OnItsWay(r.Loader)
	if got := r.files.reads(); len(got) > 0 || b.InAny() || !b.Cold || blocks != 0 || bytes != 0 {
		t.Errorf("read %v; in memory: %v; %d blocks, %d bytes are on their way", got, b.InAny(), blocks, bytes)
	}
	if all := r.Count.Losses.Counts(); len(all) != 0 {
		t.Errorf("losses %v", all)
	}
	leave, err := r.fetching.take(t.Context(), fetchPlaces)
	if err != nil {
		t.Fatal(err)
	}
	PrefetchOwn(r.Loader, "ns", []string{"cold"}, true)
	f := r.join(eviction.Unheld, "cold")[0]
	leave()
	r.wants(r.Await(t.Context(), f), parttest.Data(9, size), "host")
	r.idle()
	if n, _ := r.buffers(); n != 0 {
		t.Errorf("%d buffers are in use", n)
	}
}

// refusing is a policy that admits nothing.
type refusing struct{ policy.Policy }

func (refusing) Admit(time.Duration, policy.Meta) bool { return false }

// A block that is deleted while it is read is served and forgotten.
func TestABlockThatGoesWhileItIsRead(t *testing.T) {
	r := newRank(t)
	p := parttest.Data(1, size)
	b := r.PutCold(parttest.Name("a"), p)
	goOn := r.files.stop()
	f := r.join(eviction.CopyOnly, "a")[0]
	r.Delete("a")
	if !r.files.Holds(b.Info.ID) {
		t.Error("the block goes while it is read")
	}
	goOn()
	r.wants(r.Await(t.Context(), f), p, "host")
	r.idle()
	if len(r.Mu.Blocks) != 0 || r.files.Holds(b.Info.ID) || r.Last().Memory.Usage().Blocks != 0 {
		t.Error("the block stays")
	}
}

// So is one that nobody waits for any more.
func TestABlockThatNobodyWantsAnyMore(t *testing.T) {
	r := newRank(t)
	r.PutCold(parttest.Name("a"), parttest.Data(1, size))
	goOn := r.files.stop()
	f := r.join(eviction.CopyOnly, "a")[0]
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r.wants(r.Await(ended, f), nil, "")
	r.Delete("a")
	goOn()
	r.idle()
	if len(r.Mu.Blocks) != 0 || r.Last().Memory.Usage().Blocks != 0 {
		t.Error("the block stays")
	}
}

// A block that came into memory meanwhile is dirty when the cold tier has lost it.
func TestAReadThatFailsOfWhatIsInMemory(t *testing.T) {
	r := newRank(t)
	p := parttest.Data(1, size)
	b := r.PutCold(parttest.Name("a"), p)
	r.files.fail[b.Info.ID] = tiers.ErrCorrupt
	goOn := r.files.stop()
	f := r.join(eviction.CopyOnly, "a")[0]
	r.Put(parttest.Name("a"), p)
	goOn()
	r.wants(r.Await(t.Context(), f), nil, "")
	r.idle()
	if r.Block("a") != b || !b.Dirty() || !b.CountedDirty {
		t.Errorf("%+v", b)
	}
}

// There is nothing to join of what is in memory alone, or once the store is closed.
func TestNothingToJoin(t *testing.T) {
	r := newRank(t)
	r.Put(parttest.Name("here"), parttest.Data(1, size))
	r.PutCold(parttest.Name("below"), parttest.Data(2, size))
	if r.join(eviction.CopyOnly, "here")[0] != nil {
		t.Error("a block of memory is read")
	}
	r.Mu.Lock()
	r.Mu.Closed = true
	r.Mu.Unlock()
	if r.join(eviction.CopyOnly, "below")[0] != nil {
		t.Error("a closed store reads")
	}
}
