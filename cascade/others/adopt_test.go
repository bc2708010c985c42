package others

import (
	"context"
	"errors"
	"slices"
	"testing"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

// entry is a block of the cold tier with names of it.
func (r *rank) entry(t *testing.T, data []byte, names ...block.Name) tiers.Entry {
	t.Helper()
	info := block.Info{ID: block.Sum(r.IDBits, data), Size: int64(len(data)), CRC: block.CRC(data)}
	if !r.files.Holds(info.ID) {
		if err := r.files.Put(context.Background(), tiers.Item{Info: info, Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	return tiers.Entry{Info: info, Names: names}
}

func (r *rank) adopt(t *testing.T, entries ...tiers.Entry) residency.RecoverStats {
	t.Helper()
	a := r.NewAdoption()
	for _, e := range entries {
		if err := a.Gather(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Run(); err != nil {
		t.Fatal(err)
	}
	return a.Done
}

// A rank that gives up a name withdraws it between its own record and that of the rank that
// keeps it. Whoever finds the withdrawal, the keeper's record stays what counts.
func TestAMovedNameStays(t *testing.T) {
	r := newRank(t)
	here, kept := parttest.Data(1, size), parttest.Data(2, size)
	r.Put(parttest.Name("here"), here)
	b := r.PutCold(parttest.Name("bytes"), kept)
	r.Mu.Lock()
	put := r.Mu.Names.Get("ns", "here").Put()
	if !residency.KeepNameLocked(r.State, named("kept", put), b, put+2) {
		t.Error("the name is not kept")
	}
	r.Mu.Unlock()
	withdrawn := []block.Name{named("here", put+1), named("kept", put+1)}
	r.GiveWay([]tiers.Found{{Name: withdrawn[0], Dropped: true}, {Name: withdrawn[1], Dropped: true}})
	r.adopt(t, tiers.Entry{Dropped: withdrawn})
	if got := r.Has("here", "kept"); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("%v stay, want what was moved here", got)
	}
	for _, n := range []block.Name{named("here", put+2), named("kept", put+2)} {
		if r.invalid(&n) {
			t.Errorf("%s: what the keeper has recorded is invalid", n.Key)
		}
	}
	parttest.Check(t, r.State)
}

// Of what a part holds, the names that are not known younger are taken in, and what
// the part withdrew is withdrawn here. An older record in what is this rank's own by now is withdrawn there.
func TestAdoptionKeepsTheYoungerNames(t *testing.T) {
	r := newRank(t)
	before := r.stamp()
	r.Put(parttest.Name("young"), parttest.Data(1, size))
	r.Put(parttest.Name("old"), parttest.Data(2, size))
	r.Put(parttest.Name("dropped"), parttest.Data(3, size))
	r.Put(parttest.Name("kept"), parttest.Data(4, size))
	after := r.stamp()
	withdrawn := tiers.Entry{Dropped: []block.Name{named("dropped", after), named("kept", before)}}
	child := named("child", after+2)
	child.Parent = "new"
	foreign := r.entry(t, parttest.Data(14, size), named("kept", before))
	foreign.OtherOwner = true
	done := r.adopt(t, withdrawn, foreign,
		r.entry(t, parttest.Data(13, size), child),
		r.entry(t, parttest.Data(10, size), named("young", before)),
		r.entry(t, parttest.Data(11, size), named("old", after)),
		r.entry(t, parttest.Data(12, size), named("new", after+1)))
	want := map[string]uint64{"young": 1, "old": 11, "kept": 4, "new": 12, "child": 13}
	for key, seed := range want {
		if b := r.Block(key); b == nil || b.Info.ID != block.Sum(r.IDBits, parttest.Data(seed, size)) {
			t.Errorf("%q is not block %d", key, seed)
		}
	}
	if r.Block("dropped") != nil {
		t.Error("what the part withdrew is here")
	}
	if r.files.Holds(block.Sum(r.IDBits, parttest.Data(10, size))) {
		t.Error("a block that nobody would ask for stays in the cold tier")
	}
	if _, unlinks := r.files.Linked(); len(unlinks) != 1 || unlinks[0].Key != "young" || unlinks[0].Seq != before {
		t.Errorf("withdrawn in files: %v, want what was overwritten", unlinks)
	}
	if done.Blocks != 3 || done.Names != 3 || done.Bytes != 3*size || r.Count.Stats.Adopted != done {
		t.Errorf("%+v, in all %+v", done, r.Count.Stats.Adopted)
	}
	if n := r.Mu.Names.Get("ns", "child"); n.Parent() != r.Mu.Names.Get("ns", "new") {
		t.Error("a name does not find its parent")
	}
	parttest.Check(t, r.State)
}

// What was deleted here before the part was taken in stays deleted, though the cold tier may not have that yet. A
// block that only names elsewhere stand for stays in the tier.
func TestAdoptionOfDeletedNames(t *testing.T) {
	r := newRank(t)
	before := r.stamp()
	r.stamp()
	r.invalidate("deleted")
	wanted := r.entry(t, parttest.Data(2, size))
	wanted.Wanted = true
	r.adopt(t, r.entry(t, parttest.Data(1, size), named("deleted", before)), wanted)
	if r.Block("deleted") != nil {
		t.Error("the deleted name is back")
	}
	if r.files.Holds(block.Sum(r.IDBits, parttest.Data(1, size))) || !r.files.Holds(wanted.Info.ID) {
		t.Error("of a block that nobody would ask for, and one that is named elsewhere, not the latter alone stays")
	}
	parttest.Check(t, r.State)
}

// judging is a cold tier that says whose blocks are nobody's, or fails.
type judging struct {
	*parttest.Files
	nobodys []block.ID
	err     error
	during  func()
}

func (j *judging) Nobodys([]block.ID) ([]block.ID, error) {
	if j.during != nil {
		j.during()
	}
	return j.nobodys, j.err
}

func (j *judging) LinkAt(tiers.Segment, block.ID, block.Name) error { return nil }

// Blocks that were wanted are judged once it is known whose they are, and again while they are somebody's. What is nobody's is
// evicted, unless it was put again, or given a name, meanwhile. What is in memory alone is judged again once it has left that.
func TestWantedBlocksAreJudged(t *testing.T) {
	var tier *judging
	r := newRank(t, func(o *residency.Options) {
		tier = &judging{Files: o.Cold.(*parttest.Files)}
		o.Cold = tier
	})
	var all []tiers.Entry
	var ids []block.ID
	for seed := range uint64(4) {
		e := r.entry(t, parttest.Data(seed, size))
		e.Wanted = true
		all, ids = append(all, e), append(ids, e.Info.ID)
	}
	r.adopt(t, all...)
	judge := func(want ...bool) {
		t.Helper()
		if err := r.JudgeWanted(); !errors.Is(err, tier.err) && !errors.Is(tier.err, tiers.ErrNotNow) {
			t.Errorf("judged: %v", err)
		}
		for i, id := range ids {
			if r.files.Holds(id) != want[i] {
				t.Errorf("block %d stays: %v", i, !want[i])
			}
		}
	}
	tier.nobodys = ids[1:]
	for _, err := range []error{tiers.ErrNotNow, tiers.ErrUnavailable} {
		tier.err = err
		judge(true, true, true, true)
	}
	tier.err = nil
	tier.during = func() {
		r.Put(parttest.Name("again"), parttest.Data(1, size))
		r.Mu.Lock()
		defer r.Mu.Unlock()
		if err := r.Cold.LinkAtLocked(tiers.Segment{}, ids[2], named("linked", 5)); err != nil {
			t.Error(err)
		}
	}
	judge(true, true, true, false)
	if left := r.Cold.Wanted(); len(left) != 2 || !slices.Contains(left, ids[0]) || !slices.Contains(left, ids[1]) {
		t.Errorf("%v are to be judged again, want %v", left, ids[:2])
	}
	tier.nobodys, tier.during = ids, nil // the names that stood for the first one are gone
	judge(false, true, true, false)
	r.Delete("again")
	judge(false, false, true, false)
	if left := r.Cold.Wanted(); len(left) > 0 {
		t.Errorf("%v are to be judged again", left)
	}
	parttest.Check(t, r.State)
}

// What lies in another process's file is that one's to give up, until it becomes this
// rank's own; never the other way round.
func TestForeignBlocksBecomeOwn(t *testing.T) {
	r := newRank(t, func(o *residency.Options) { o.Limits.ColdBytes = 1 << 20 })
	e := r.entry(t, parttest.Data(1, size), named("a", 5))
	e.OtherOwner = true
	r.adopt(t, e)
	b := r.Block("a")
	if !b.Cold || !b.Below.OtherOwner || b.Below.Ranked || r.Cold.Bytes != 0 {
		t.Errorf("foreign: %+v", b.Below)
	}
	e.OtherOwner = false
	if done := r.adopt(t, e); done.Blocks != 0 || done.Names != 0 {
		t.Errorf("%+v is new", done)
	}
	if b.Below.OtherOwner || !b.Below.Old || r.Cold.Bytes != size {
		t.Errorf("own: %+v, %d bytes", b.Below, r.Cold.Bytes)
	}
	e.OtherOwner = true
	if r.adopt(t, e); b.Below.OtherOwner {
		t.Error("an own block becomes another one's")
	}
	parttest.Check(t, r.State)
}

// What is adopted leaves in the order in which it was put.
func TestWhatIsAdoptedLeavesInItsOrder(t *testing.T) {
	r := newRank(t, func(o *residency.Options) { o.Limits.ColdBytes = 1 << 20 })
	r.adopt(t, r.entry(t, parttest.Data(1, size), named("b", 9), named("c", 6)), r.entry(t, parttest.Data(2, size), named("a", 5)),
		r.entry(t, parttest.Data(3, size), named("d", 7)))
	for _, key := range []string{"a", "b", "d"} {
		b := r.Cold.Next()
		if b != r.Block(key) {
			t.Fatalf("%q leaves, want %q", b.Names()[0].Key(), key)
		}
		r.Mu.Lock()
		r.Cold.LeaveLocked(b, true)
		r.Mu.Unlock()
	}
}

// A name for which there is no room is not taken in, and nothing is forgotten for it.
func TestAdoptionKeepsTheBoundOnNames(t *testing.T) {
	r := newRank(t, func(o *residency.Options) { o.Limits.NameBytes = 2 * names.Cost("a", "") })
	r.Put(parttest.Name("a"), parttest.Data(1, size))
	r.Put(parttest.Name("b"), parttest.Data(2, size))
	done := r.adopt(t, r.entry(t, parttest.Data(3, size), named("c", r.stamp())), r.entry(t, parttest.Data(4, size), named("b", r.stamp())))
	if got := r.Has("a", "b", "c"); !slices.Equal(got, []string{"a", "b"}) || done.Names != 1 {
		t.Errorf("%v are here, %+v", got, done)
	}
	if b := r.Block("b"); b.Info.ID != block.Sum(r.IDBits, parttest.Data(4, size)) {
		t.Error("a name that is here does not become the younger one")
	}
}

// A store that is closed takes in nothing more.
func TestAdoptionEndsWithTheStore(t *testing.T) {
	r := newRank(t)
	a := r.NewAdoption()
	_ = a.Gather(r.entry(t, parttest.Data(1, size), named("a", 5)))
	r.Mu.Lock()
	r.Mu.Closed = true
	r.Mu.Unlock()
	if err := a.Run(); !errors.Is(err, residency.ErrClosed) || r.Block("a") != nil {
		t.Errorf("%v", err)
	}
}

// Names give way to younger ones that were found elsewhere: they are withdrawn here,
// and what was deleted elsewhere is deleted.
func TestNamesGiveWay(t *testing.T) {
	r := newRank(t)
	before := r.stamp()
	for i, k := range []string{"young", "old", "deleted"} {
		r.Put(parttest.Name(k), parttest.Data(uint64(i), size))
	}
	after := r.stamp() + 1000
	r.Put(parttest.Name("moved"), parttest.Data(3, size))
	n := r.Mu.Names.Get("ns", "moved") // its block lies in another file than its record
	moved := tiers.Found{Info: block.Info{ID: r.Block("moved").Info.ID}, Name: named("moved", n.Put()+2)}
	r.GiveWay([]tiers.Found{moved, {Name: named("young", before)}, {Name: named("old", after)}, {Name: named("deleted", after), Dropped: true}, {Name: named("unknown", after)}})
	if got := r.Has("young", "old", "deleted", "moved"); !slices.Equal(got, []string{"young", "moved"}) {
		t.Errorf("%v stay", got)
	}
	if r.stamp() <= after {
		t.Error("the next put would be older than what was found")
	}
	old, deleted := named("old", after), named("deleted", after-1)
	if r.invalid(&old) || !r.invalid(&deleted) {
		t.Error("what was found is invalid, or what was deleted is not")
	}
	parttest.Check(t, r.State)
}
