package coldspace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

// What is over the budget is given up, from the ends of chains; the rest stays.
func TestShrinkKeepsTheBudget(t *testing.T) {
	r := newRank(t, budget(20))
	keys := r.fill(60, 6)
	r.Shrink()
	stay := r.Has(keys...)
	if r.Cold.Bytes != 20*size || len(stay) != 20 || r.files.Usage().Blocks != 20 || r.Cold.Stats.Evicted != 40 {
		t.Errorf("%d bytes, %d names, %d blocks, %d evicted", r.Cold.Bytes, len(stay), r.files.Usage().Blocks, r.Cold.Stats.Evicted)
	}
	if !slices.Contains(stay, "54") || slices.Contains(stay, "5") {
		t.Errorf("%v stay", stay)
	}
	parttest.NoHoles(t, r.State)
	parttest.Check(t, r.State)
	r.Shrink()
	if got := r.Has(keys...); len(got) != 20 {
		t.Errorf("%d names stay, though the budget was kept", len(got))
	}
}

// Without a budget everything stays, until the tier is full.
func TestNothingShrinksWithoutABudget(t *testing.T) {
	r := newRank(t)
	keys := r.fill(50, 1)
	r.Shrink()
	if got := r.Has(keys...); len(got) != 50 || parttest.Locked(r.State, r.RanksColdLocked) {
		t.Errorf("%d names stay", len(got))
	}
}

// Where memory keeps more than the budget holds, the tier takes no writes for a while,
// and nothing is given up.
func TestABudgetBelowMemory(t *testing.T) {
	r := newRank(t, budget(5))
	keys := r.fill(10, 1)
	for i, k := range keys {
		r.Put(parttest.Name(k), parttest.Data(uint64(i), size))
	}
	r.Shrink()
	if got := r.Has(keys...); len(got) != 10 || r.ColdUp() || !r.Log.Has(errColdFull.Error()) {
		t.Errorf("%d names stay, the tier takes writes: %v", len(got), r.ColdUp())
	}
	r.Advance(residency.ColdRetry)
	if !r.ColdUp() {
		t.Error("the tier is left alone for ever")
	}
}

// A full tier gives up a step of what it has, the oldest blocks first, and merges; a
// next step comes when that was done and some time has passed, and when the tier takes
// blocks again for a while the shortage is over.
func TestLowSpaceInSteps(t *testing.T) {
	r := newRank(t)
	keys := r.fill(64, 1)
	foreign := r.PutCold(parttest.Name("foreign"), parttest.Data(1000, size))
	foreign.Below.OtherOwner = true
	first := r.usedBelow()
	r.full()
	r.full()
	step := r.limit()
	if step >= first || step < first*9/10 || len(r.Log.Lines("cold tier is full")) != 1 || len(r.CleanerWake) != 1 {
		t.Fatalf("the limit is %d of %d; logged %v", step, first, r.Log.Lines("full"))
	}
	r.Shrink()
	stay := r.Has(keys...)
	if len(stay) == 64 || !slices.Equal(stay, keys[64-len(stay):]) || r.Block("foreign") == nil || !parttest.Locked(r.State, r.RanksColdLocked) {
		t.Errorf("%v stay", stay)
	}
	if len(r.mergeNow) != 1 {
		t.Error("nobody merges")
	}
	<-r.mergeNow
	if err := r.overBudgetLocked(); err != nil || !r.ColdUp() {
		t.Errorf("a shortage keeps the tier from taking blocks: %v", err)
	}
	r.MergedAll()
	r.full()
	if got := r.limit(); got != step {
		t.Errorf("the limit is %d at once, after %d", got, step)
	}
	r.Advance(policy.LowSpaceStep)
	r.full()
	if got := r.limit(); got >= step {
		t.Errorf("the limit is %d, after %d", got, step)
	}
	r.Advance(time.Minute)
	r.Mu.Lock()
	r.AcceptedLocked()
	r.Mu.Unlock()
	if got := r.limit(); got != 0 {
		t.Errorf("the limit is %d though the tier has room", got)
	}
	parttest.Check(t, r.State)
}

// A next step of a shortage waits until what the last one gave up is merged.
func TestANextStepWaitsForTheMerge(t *testing.T) {
	r := newRank(t)
	r.fill(64, 1)
	r.full()
	step := r.limit()
	r.Advance(policy.LowSpaceStep)
	r.full()
	if got := r.limit(); got != step {
		t.Errorf("the limit is %d before the merge, after %d", got, step)
	}
	r.MergedAll()
	r.full()
	if got := r.limit(); got >= step {
		t.Errorf("the limit is %d after the merge, after %d", got, step)
	}
}

// A full tier that memory holds all of gives up nothing, and still takes what it can.
func TestNothingToGiveUpInAShortage(t *testing.T) {
	r := newRank(t)
	keys := r.fill(16, 1)
	for i, k := range keys {
		r.Put(parttest.Name(k), parttest.Data(uint64(i), size))
	}
	r.full()
	r.Shrink()
	if got := r.Has(keys...); len(got) != 16 || r.Cold.Stats.Evicted != 0 || !r.ColdUp() || r.Log.Has(errColdFull.Error()) {
		t.Errorf("%v stay, the tier takes writes: %v", got, r.ColdUp())
	}
}

// While something is adopted or loaded nothing leaves: what was used in it is not known yet. And
// nothing young leaves as long as there are files with what is older.
func TestNothingLeavesBeforeWhatIsOlderIsKnown(t *testing.T) {
	for name, set := range map[string]func(r *rank, on bool){
		"loading": func(r *rank, on bool) {
			if r.Cold.Loads = 0; on {
				r.Cold.Loads = 1
			}
		},
		"spilled": func(r *rank, on bool) {
			if r.guarded.Spilled = nil; on {
				r.guarded.Spilled = []tiers.SpilledFile{{Bytes: 1}}
			}
		},
		"orphans": func(r *rank, on bool) {
			if r.guarded.Orphans.Left = nil; on {
				r.guarded.Orphans.Left = []orphan{{bytes: 1}}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t, budget(5))
			keys := r.fill(10, 1)
			for _, on := range []bool{true, false} {
				r.Mu.Lock()
				set(r, on)
				r.Mu.Unlock()
				r.Shrink()
				if got := r.Has(keys...); (len(got) == 10) != on {
					t.Errorf("%v: %v stay", on, got)
				}
			}
		})
	}
}

// Names near their bound have the cold tier ranked, though it is not full.
func TestTightNamesRankTheColdTier(t *testing.T) {
	r := newRank(t, func(o *residency.Options) { o.Limits.NameBytes = 1 })
	r.fill(5, 1)
	r.Shrink()
	if !parttest.Locked(r.State, r.RanksColdLocked) || r.Cold.Bytes != 5*size || r.Cold.Next() != r.Block("0") {
		t.Errorf("%d bytes are ranked", r.Cold.Bytes)
	}
	parttest.Check(t, r.State)
}

// One line for each merge that did something, also if it failed, and none for others.
func TestMergesAreLogged(t *testing.T) {
	r := newRank(t)
	b := r.PutCold(parttest.Name("moved"), parttest.Data(1, size))
	next := []tiers.Merged{
		{Merges: 1, Segments: 3, Blocks: 40, Bytes: 5000, Written: 6000, Removed: 20000},
		{},
		{Merges: 1, Segments: 1, Blocks: 7, Bytes: 800, Written: 900},
	}
	r.files.merge = func() (did tiers.Merged, ids []block.ID, err error) {
		r.Advance(3 * time.Second)
		did, next = next[0], next[1:]
		if len(next) == 0 {
			err = errors.New("no luck")
		}
		return did, []block.ID{b.Info.ID, {1}}, err
	}
	r.Seen.Take()
	for i, again := range []bool{true, false, false} {
		if got := r.MergeOnce(t.Context()); got != again {
			t.Errorf("merge %d asks for another: %v", i, got)
		}
	}
	lines := r.Log.Lines("merged segments")
	if len(lines) != 2 || len(r.Log.Lines("no luck")) != 1 {
		t.Fatalf("%q, %q", lines, r.Log.Lines("no luck"))
	}
	for i, want := range []string{"segments=3 blocks=40 bytes=5000 freed=14000 duration=3s", "segments=1 blocks=7 bytes=800 freed=-900 duration=3s"} {
		if !strings.Contains(lines[i], "level=INFO") || !strings.Contains(lines[i], "tier=host "+want) {
			t.Errorf("%s, want %s", lines[i], want)
		}
	}
	if got := parttest.Only(r.Seen.Take(), "invalidate fetch"); len(got) != 3 { // what publishing begins with
		t.Errorf("where the block lies now is published %d times", len(got))
	}
}

// short is a rank whose full tier is to be emptied: of ten blocks in files of its own,
// the sparsest file has "1" and "2".
func short(t *testing.T, change ...func(*residency.Options)) (r *rank, keys []string) {
	r = newRank(t, change...)
	keys = r.fill(10, 2) // "0" leads "1", "2" leads "3"
	r.files.sparsest = [][]block.ID{{r.Block("1").Info.ID, r.Block("2").Info.ID}}
	r.full()
	return r, keys
}

// The blocks of the emptiest file come up into memory, where they are dirty, and leave
// the tier.
func TestEvacuate(t *testing.T) {
	r, keys := short(t)
	r.Mu.Lock()
	r.Mu.Writes.ColdDown = r.Now().Add(time.Hour)
	r.Mu.Unlock()
	if !r.Evacuate(t.Context()) {
		t.Fatal("nothing is evacuated")
	}
	for _, k := range keys {
		b, moved := r.Block(k), k == "1" || k == "2"
		if b == nil || b.Cold == moved || b.InAny() != moved || b.Dirty() != moved || r.files.Holds(b.Info.ID) == moved {
			t.Errorf("block %s: %+v", k, b)
		}
	}
	if !r.ColdUp() || r.Count.Stats.Views != 0 {
		t.Errorf("what is dirty waits; %d views", r.Count.Stats.Views)
	}
	parttest.NoHoles(t, r.State)
	parttest.Check(t, r.State)
	if r.Evacuate(t.Context()) {
		t.Error("it goes on though that did not help")
	}
}

// When a block that a chain needs does not come up the file stays as it is; one that
// nothing needs is given up.
func TestEvacuateLosesNoParent(t *testing.T) {
	for _, needed := range []bool{false, true} {
		r, keys := short(t, func(o *residency.Options) {
			o.Capacity, o.Limits.RoomDeadline, o.Limits.FetchDeadline = evacuateShare*size, time.Millisecond, time.Minute
		})
		for i := range evacuateShare { // so that no block fits into memory
			r.Put(parttest.Name(fmt.Sprint("dirty", i)), parttest.Data(uint64(100+i), size))
		}
		r.files.sparsest[0] = r.files.sparsest[0][:1]
		if needed {
			r.files.sparsest[0][0] = r.Block("2").Info.ID
		}
		if r.Evacuate(t.Context()) == needed {
			t.Errorf("the block is needed: %v; the file is emptied: %v", needed, !needed)
		}
		if got := r.Has(keys...); (len(got) == len(keys)) != needed {
			t.Errorf("the block is needed: %v; %v stay", needed, got)
		}
		parttest.NoHoles(t, r.State)
		parttest.Check(t, r.State)
	}
}

// What is in memory takes nothing of it to load, so that a file can go whatever it has of
// that; of the others one that needs little.
func TestEvacuateLoadsLittle(t *testing.T) {
	r, _ := short(t, func(o *residency.Options) { o.Capacity = 2 * ownShare * size })
	id := func(key string) block.ID { return r.Block(key).Info.ID }
	views, _ := r.takeUp(t.Context(), []block.ID{id("4"), id("5"), id("6")})
	for _, v := range views {
		v.Release()
	}
	r.files.sparsest = [][]block.ID{{id("0"), id("1"), id("8")}, {id("4"), id("5"), id("6"), id("7")}}
	if !r.Evacuate(t.Context()) {
		t.Fatal("nothing is evacuated")
	}
	for _, key := range []string{"0", "1", "8"} {
		if !r.Block(key).Cold {
			t.Errorf("block %s left the tier: all together take more of memory than one load may", key)
		}
	}
	for _, key := range []string{"4", "5", "6", "7"} {
		if r.Block(key).Cold {
			t.Errorf("block %s is in the tier still", key)
		}
	}
	parttest.NoHoles(t, r.State)
	parttest.Check(t, r.State)
}

// A tier that is not short of space is not emptied.
func TestNothingIsEvacuatedWithoutNeed(t *testing.T) {
	r := newRank(t)
	r.fill(4, 2)
	r.files.sparsest = [][]block.ID{{r.Block("1").Info.ID}}
	if r.Evacuate(t.Context()) || !r.Block("1").Cold {
		t.Error("it is emptied")
	}
}

// A merge waits until what the last one read and wrote is repaid, and requests do not wait for it.
func TestMergesKeepTheBudgets(t *testing.T) {
	r := newRank(t, func(o *residency.Options) { o.Limits.ReadRate, o.Limits.WriteRate = 1000, 1000 })
	merges := 0
	r.files.merge = func() (tiers.Merged, []block.ID, error) {
		merges++
		return tiers.Merged{Merges: 1, Segments: 1, Bytes: 5000, Written: 9000}, nil, nil
	}
	if !r.MergeOnce(t.Context()) || r.Cold.Reads.Left() != 1000 || r.Cold.Writes.Left() != 1000 {
		t.Errorf("%d bytes are left to read, %d to write", r.Cold.Reads.Left(), r.Cold.Writes.Left())
	}
	for range 2 { // then the reads are repaid, and the writes are not
		if r.MergeOnce(t.Context()) || merges != 1 {
			t.Errorf("%d merges, in debt", merges)
		}
		r.Advance(6 * time.Second)
	}
	if r.MergeOnce(t.Context()); merges != 2 {
		t.Errorf("%d merges, with a budget", merges)
	}
}

// What a merge moves after its caller has left it is owed as well.
func TestMergesThatAreLeftBehindOweToo(t *testing.T) {
	r := newRank(t, func(o *residency.Options) { o.Limits.ReadRate, o.Limits.WriteRate = 1000, 1000 })
	merges := 0
	r.files.merge = func() (tiers.Merged, []block.ID, error) {
		merges++
		return tiers.Merged{}, nil, context.DeadlineExceeded
	}
	r.MergeOnce(t.Context())
	if r.MergeOnce(t.Context()); merges != 2 {
		t.Errorf("%d merges, and none has moved anything", merges)
	}
	r.files.merged.Add(tiers.Merged{Merges: 1, Bytes: 2000, Written: 2000}) // it has ended meanwhile
	if r.MergeOnce(t.Context()); merges != 2 || !r.Cold.Reads.Owes() || !r.Cold.Writes.Owes() {
		t.Errorf("%d merges, in debt", merges)
	}
}

// Where the file system is full a merge waits for no budget, until what was given up is merged.
func TestMergesOfAFullTierDoNotWait(t *testing.T) {
	r := newRank(t, func(o *residency.Options) { o.Limits.ReadRate, o.Limits.WriteRate = 1000, 1000 })
	r.fill(32, 4)
	merges := 0
	r.files.merge = func() (tiers.Merged, []block.ID, error) {
		merges++
		return tiers.Merged{Merges: 1, Segments: 1, Bytes: 5000, Written: 9000}, nil, nil
	}
	r.MergeOnce(t.Context())
	if r.MergeOnce(t.Context()); merges != 1 {
		t.Errorf("%d merges, in debt", merges)
	}
	r.full()
	if r.MergeOnce(t.Context()); merges != 2 {
		t.Errorf("%d merges of a full tier, in debt", merges)
	}
	if r.Shrink(); r.usedBelow() > r.limit() {
		t.Fatalf("%d bytes stay, of %d", r.usedBelow(), r.limit())
	}
	if r.MergeOnce(t.Context()); merges != 2 {
		t.Errorf("%d merges, in debt, of a tier that has given up its share", merges)
	}
}
