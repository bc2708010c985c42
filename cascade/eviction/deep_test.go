package eviction

import (
	"fmt"
	"slices"
	"testing"

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
	for range demotedAtOnce {
		e.countDemoting(1)
	}
	want("while it has enough to do", policy.Copy, policy.Drop)
	for range demotedAtOnce {
		e.countDemoting(-1)
	}
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
