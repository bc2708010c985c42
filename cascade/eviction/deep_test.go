package eviction

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/internal/testing/parttest"
	"cascadekv/internal/testing/testdevice"
	"cascadekv/tiers"
)

// large is the size of blocks of which memory and the disk have few.
const large = 50_000

// aboveADisk is a rank with a disk below memory, that has some blocks in memory.
func aboveADisk(t *testing.T, blocks int, change ...func(*residency.Options)) (*parttest.Rank, *testdevice.Tier) {
	t.Helper()
	d := testdevice.New(4 << 20)
	r := parttest.New(t, append(change, func(o *residency.Options) { o.Memory = []tiers.Memory{parttest.Host(t), d} })...)
	for i := range blocks {
		r.PutIn(r.Host(), parttest.Name(fmt.Sprint(i)), parttest.Data(uint64(i), large))
	}
	return r, d
}

// TestVictimsOfTheHostLevel go to the disk; while it has enough to do, those that files have do without a copy there.
func TestVictimsOfTheHostLevel(t *testing.T) {
	files := parttest.NewFiles(t)
	r, d := aboveADisk(t, 0, func(o *residency.Options) { o.Cold = files })
	e := New(r.State)
	r.PutIn(r.Host(), parttest.Name("dirty"), parttest.Data(1, large))
	r.PutIn(r.Host(), parttest.Name("clean"), parttest.Data(2, large))
	r.PutCold(parttest.Name("clean"), parttest.Data(2, large))
	step := func(key string) policy.Step {
		b := r.Block(key)
		return parttest.Locked(r.State, func() policy.Step { step, _ := e.decideLocked(b, r.Host()); return step })
	}
	want := func(what string, dirty, clean policy.Step) {
		t.Helper()
		if gotDirty, gotClean := step("dirty"), step("clean"); gotDirty != dirty || gotClean != clean {
			t.Errorf("%s: %d and %d, want %d and %d", what, gotDirty, gotClean, dirty, clean)
		}
	}
	want("at first", policy.Copy, policy.Copy)
	r.Mu.Writes.Demoting = demotedAtOnce
	want("while it has enough to do", policy.Copy, policy.Drop)
	r.Mu.Writes.Demoting = 0
	b := r.Block("dirty")
	if err := e.Demote(t.Context(), b, r.Host(), r.Deep(), AnyBlock); err != nil || !b.In(1) {
		t.Errorf("%v, on the disk: %v", err, b.In(1))
	}
	want("once it is there", policy.Drop, policy.Copy)
	d.Set(testdevice.Faults{Writes: tiers.ErrUnavailable})
	clean := r.Block("clean")
	if err := e.Demote(t.Context(), clean, r.Host(), r.Deep(), AnyBlock); err != nil || clean.In(1) {
		t.Errorf("%v, on the disk: %v", err, clean.In(1))
	}
	want("while it is left alone", policy.Drop, policy.Drop)
	r.Advance(2 * residency.ColdRetry)
	want("after that", policy.Drop, policy.Copy)
}

// TestDemotesAheadOfNeed: as many victims as there should be have copies on the disk, in the order in which they leave.
func TestDemotesAheadOfNeed(t *testing.T) {
	r, d := aboveADisk(t, 0)
	e := New(r.State)
	var keys []string
	for i := 0; parttest.Locked(r.State, func() bool { return !residency.DemotesLocked(r.State) }); i++ {
		keys = append(keys, fmt.Sprint(i))
		r.PutIn(r.Host(), parttest.Name(keys[i]), parttest.Data(uint64(i), large))
	}
	for e.demoteSome(t.Context()) {
	}
	copies := 0
	for _, k := range keys {
		if r.Block(k).In(1) {
			copies++
		}
	}
	if most := int(d.Usage().Capacity / large); copies != min(residency.EnoughClean, len(keys), most) || r.Host().Stats.Evicted != 0 {
		t.Errorf("%d of %d blocks are on the disk, %d left memory", copies, len(keys), r.Host().Stats.Evicted)
	}
	first := parttest.Locked(r.State, func() *residency.Block { return e.VictimLocked(r.Host()) })
	if !first.In(1) || !slices.Contains(keys, first.Names()[0].Key()) {
		t.Error("the next victim is not there")
	}
	if !parttest.Locked(r.State, func() bool { step, _ := e.decideLocked(first, r.Host()); return step == policy.Drop }) {
		t.Error("the next victim does not leave at once")
	}
	parttest.Check(t, r.State)
}

// stepOf is what happens next to a block of the host level, and what is lost then.
func stepOf(r *parttest.Rank, e *Evictor, key string) [2]uint8 {
	b := r.Block(key)
	return parttest.Locked(r.State, func() [2]uint8 {
		step, why := e.decideLocked(b, r.Host())
		return [2]uint8{uint8(step), uint8(why)}
	})
}

// TestTheBudgetOfTheDisk: once it is used up victims go another way, as each can: those that files have leave, others are
// written there or, where there are none, dropped, but for leased ones. While a drain runs there is no limit.
func TestTheBudgetOfTheDisk(t *testing.T) {
	type steps map[string][2]uint8
	at := func(step policy.Step, why policy.Loss) [2]uint8 { return [2]uint8{uint8(step), uint8(why)} }
	for name, c := range map[string]struct {
		files bool
		spent steps
	}{
		"files":    {true, steps{"dirty": at(policy.Write, policy.NoLoss), "clean": at(policy.Drop, policy.NoLoss), "leased": at(policy.Write, policy.NoLoss)}},
		"no files": {false, steps{"dirty": at(policy.Drop, policy.OverBudget), "leased": at(policy.Keep, policy.NoLoss)}},
	} {
		t.Run(name, func(t *testing.T) {
			change := func(o *residency.Options) { o.Limits.DeepWriteRate = large }
			if c.files {
				change = func(o *residency.Options) { o.Limits.DeepWriteRate, o.Cold = large, parttest.NewFiles(t) }
			}
			r, _ := aboveADisk(t, 2, change)
			e, d := New(r.State), r.Deep()
			for i, key := range []string{"dirty", "leased"} {
				r.PutIn(r.Host(), parttest.Name(key), parttest.Data(uint64(100+i), large))
			}
			r.Leases.Renew("ns", "leased", "me", time.Hour)
			if c.files {
				r.PutIn(r.Host(), parttest.Name("clean"), parttest.Data(200, large))
				r.PutCold(parttest.Name("clean"), parttest.Data(200, large))
			}
			want := func(what string, all func(key string) [2]uint8) {
				t.Helper()
				for key := range c.spent {
					if got := stepOf(r, e, key); got != all(key) {
						t.Errorf("%s: %s has %v, want %v", what, key, got, all(key))
					}
				}
			}
			copied := func(string) [2]uint8 { return at(policy.Copy, policy.NoLoss) }
			spent := func(key string) [2]uint8 { return c.spent[key] }
			want("with a budget", copied)
			if e.untilBudget() != nil {
				t.Error("it waits for a budget that is there")
			}
			demote := func(key string) error { return e.Demote(t.Context(), r.Block(key), r.Host(), d, AnyBlock) }
			if err := demote("0"); err != nil || !r.Block("0").In(1) || d.Writes.Left() != 0 {
				t.Fatalf("%v; %d bytes are left", err, d.Writes.Left())
			}
			want("without", spent)
			if lowest := parttest.Locked(r.State, r.LowestLocked); lowest != r.Host() {
				t.Errorf("without, victims of %s go to files", lowest.Stats.Name)
			}
			if err := demote("1"); err != nil || r.Block("1").In(1) || d.NoWrites.Lasts() || d.Stats.Errors != 0 {
				t.Errorf("%v: without a budget it is copied: %v; %+v", err, r.Block("1").In(1), d.Stats)
			}
			if got := stepOf(r, e, "0"); got != at(policy.Drop, policy.NoLoss) {
				t.Errorf("what the disk has: %v", got)
			}
			if b := d.BudgetStats(); b == nil || b.Writes != large || b.Reads != 0 || b.WriteWait == 0 {
				t.Errorf("%+v", b)
			}
			parttest.Locked(r.State, func() bool { r.Mu.Writes.Drains++; return true })
			want("while a drain runs", copied)
			parttest.Locked(r.State, func() bool { r.Mu.Writes.Drains--; return true })
			want("after it", spent)
			r.Advance(time.Second)
			want("a second later", copied)
			if lowest := parttest.Locked(r.State, r.LowestLocked); lowest != d {
				t.Errorf("a second later victims of %s go to files", lowest.Stats.Name)
			}
			r.Limit(func(l *residency.Limits) { l.DeepWriteRate = 0 })
			if want("without a limit", copied); d.BudgetStats() != nil {
				t.Errorf("without a limit: %+v", d.BudgetStats())
			}
			parttest.Check(t, r.State)
		})
	}
}

// TestReadsAreNoReasonToDrop: for want of a budget of the disk no only copy gives way to what is read.
func TestReadsAreNoReasonToDrop(t *testing.T) {
	r, _ := aboveADisk(t, 2, func(o *residency.Options) { o.Limits.DeepWriteRate = 1 })
	r.Deep().Writes.Take(1)
	e := New(r.State)
	if err := e.EvictOne(t.Context(), r.Host(), CopyOnly); !errors.Is(err, errOnlyCopy) || len(r.Has("0", "1")) != 2 {
		t.Errorf("%v; %v stay", err, r.Has("0", "1"))
	}
	if err := e.EvictOne(t.Context(), r.Host(), AnyBlock); err != nil || len(r.Has("0", "1")) != 1 || r.Count.Stats.Shed != 1 || r.Count.Stats.Lost != 0 {
		t.Errorf("%v; %v stay, %d shed, %d lost", err, r.Has("0", "1"), r.Count.Stats.Shed, r.Count.Stats.Lost)
	}
	parttest.Check(t, r.State)
}

// TestWhatIsNotWrittenCostsNoBudget: a copy that the disk refuses, fails or has no use for.
func TestWhatIsNotWrittenCostsNoBudget(t *testing.T) {
	r, d := aboveADisk(t, 3, func(o *residency.Options) { o.Limits.DeepWriteRate = 10 * large })
	e := New(r.State)
	want := func(what, key string, blocks int64) {
		t.Helper()
		err := e.Demote(t.Context(), r.Block(key), r.Host(), r.Deep(), AnyBlock)
		if left := r.Deep().Writes.Left(); err != nil || left != (10-blocks)*large || r.Mu.Writes.Demoting != 0 {
			t.Errorf("%s: %v; %d bytes are left, %d copies under way", what, err, left, r.Mu.Writes.Demoting)
		}
	}
	want("a copy", "0", 1)
	want("the same again", "0", 1)
	e.Identify = func(v *residency.View) {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		r.UnbindLocked(v.Block().Names()[0])
	}
	want("a block that has no names by then", "1", 1)
	e.Identify = nil
	d.Set(testdevice.Faults{Writes: tiers.ErrUnavailable})
	want("a disk that fails", "2", 1)
}

// TestDemotesWithinTheBudget: copies ahead of need take no more than the budget and one block, and go on when there is more.
func TestDemotesWithinTheBudget(t *testing.T) {
	r, _ := aboveADisk(t, 0, func(o *residency.Options) { o.Limits.DeepWriteRate = 2*large + 1 })
	e := New(r.State)
	for i := 0; parttest.Locked(r.State, func() bool { return !residency.DemotesLocked(r.State) }); i++ {
		r.PutIn(r.Host(), parttest.Name(fmt.Sprint(i)), parttest.Data(uint64(i), large))
	}
	demoted := func() uint64 {
		for e.demoteSome(t.Context()) {
		}
		return r.Host().Stats.Demoted
	}
	if n := demoted(); n != 3 || r.Host().Stats.Evicted != 0 {
		t.Errorf("%d copies", n)
	}
	if e.untilBudget() == nil {
		t.Error("it does not look again")
	}
	r.Advance(time.Second)
	if n := demoted(); n != 5 {
		t.Errorf("%d copies after a second", n)
	}
	parttest.Check(t, r.State)
}
