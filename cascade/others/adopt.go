package others

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// ErrNotShared: the store has no cold tier that ranks share.
var ErrNotShared = errors.New("cascade: the cold tier has no parts of other ranks")

// Parts lists what runs of this and other ranks left in the cold tier, or are
// writing to it. Nil where ranks do not share it.
func (x *Exchange) Parts(ctx context.Context) ([]tiers.Part, error) {
	if x.state.Cold == nil {
		return nil, nil
	}
	return x.state.Cold.Files.Parts(ctx)
}

// Adoption adopts what a part of the cold tier holds: Gather is called with each
// entry, then Run once.
type Adoption struct {
	exchange *Exchange
	entries  []tiers.Entry
	own      bool                   // what was this rank's before
	Done     residency.RecoverStats // what Run did
}

// NewAdoption returns an adoption of nothing yet.
func (x *Exchange) NewAdoption() *Adoption { return &Adoption{exchange: x} }

// NewReload is NewAdoption of what is this rank's own, and was spilled: it is not
// counted as adopted, and all names are taken back, whatever the bound on names.
func (x *Exchange) NewReload() *Adoption { return &Adoption{exchange: x, own: true} }

// Gather notes one entry.
func (a *Adoption) Gather(e tiers.Entry) error {
	a.entries = append(a.entries, e)
	return nil
}

// adoptStep bounds the entries that are adopted in one go with the mutex held.
const adoptStep = 256

// Run adopts the blocks in the order of their chains, so that a name finds its
// parent.
func (a *Adoption) Run() error {
	slices.SortStableFunc(a.entries, func(x, y tiers.Entry) int { return cmp.Compare(firstSeq(x), firstSeq(y)) })
	for len(a.entries) > 0 {
		n := min(len(a.entries), adoptStep)
		if err := a.step(a.entries[:n]); err != nil {
			return err
		}
		a.entries = a.entries[n:]
	}
	return nil
}

// firstSeq is when the first of an entry's names was recorded; 0 without names.
func firstSeq(e tiers.Entry) (least uint64) {
	for i, n := range e.Names {
		if i == 0 || n.Seq < least {
			least = n.Seq
		}
	}
	return least
}

func (a *Adoption) step(entries []tiers.Entry) error {
	x := a.exchange
	x.state.Mu.Lock()
	defer x.state.Mu.Unlock()
	if err := x.state.CheckOpenLocked(); err != nil {
		return err
	}
	for _, e := range entries {
		for _, n := range e.Dropped {
			x.withdrawnLocked(&n)
		}
		if !e.Info.ID.IsZero() {
			a.blockLocked(e)
		}
	}
	return nil
}

// blockLocked adopts one block with those of its names that are not newer here. Of a name that
// stands for other bytes by now its record is withdrawn: once the block is gone nobody
// would know of a record that lies in this rank's files.
func (a *Adoption) blockLocked(e tiers.Entry) {
	x := a.exchange
	var some []block.Name
	for _, n := range e.Names {
		x.state.Mu.Names.Observe(n.Seq)
		here := x.state.Mu.Names.Get(n.Namespace, n.Key)
		held := here != nil && here.Block() != nil
		switch {
		case x.guarded.tombstones.Has(&n): // it was deleted, and the cold tier may not have that yet
		case held && here.Put() < n.Seq, !held && (a.own || x.nameRoom.HasRoomLocked()):
			some = append(some, n)
		case held && here.Put() > n.Seq && !e.OtherOwner && residency.BlockOf(here).Info.ID != e.Info.ID:
			x.state.NoteLinkLocked(x.state.Cold.Files.Unlink(e.Info.ID, n))
		}
	}
	known := x.state.Mu.Blocks[e.Info.ID] != nil
	if len(some) == 0 && !known {
		if e.Wanted {
			x.state.Cold.WantedLocked(e.Info.ID)
		} else {
			x.state.NoteColdLocked(x.state.Cold.Files.Evict(e.Info.ID)) // nobody would ever ask for it
			x.state.Watch.RestsLocked(e.Info)
		}
		return
	}
	b := x.state.FoundLocked(e.Info)
	if b == nil {
		return
	}
	if !known {
		a.countLocked(1, 0, e.Info.Size)
	}
	unrecorded := a.unrecordedLocked(b, e.Names)
	a.placeLocked(b, e.OtherOwner)
	for _, n := range some {
		x.state.BindRecordedLocked(n, b)
	}
	for _, n := range unrecorded {
		if residency.BlockOf(n) == b {
			x.state.LinkColdLocked(b, n.Record())
		}
	}
	a.countLocked(0, len(some), 0)
}

// JudgeWanted evicts those blocks that were taken for wanted for which no names stand, once that is known.
func (x *Exchange) JudgeWanted() error {
	if x.state.Cold == nil {
		return nil
	}
	for ids := range slices.Chunk(x.state.Cold.Wanted(), adoptStep) {
		nobodys, err := x.state.Cold.Files.Nobodys(ids)
		if errors.Is(err, tiers.ErrNotNow) {
			return nil // after a later round
		}
		if err != nil {
			return err
		}
		x.judge(ids, nobodys)
	}
	return nil
}

func (x *Exchange) judge(ids, nobodys []block.ID) {
	x.state.Mu.Lock()
	defer x.state.Mu.Unlock()
	if x.state.Mu.Closed {
		return
	}
	for _, id := range ids {
		x.state.Cold.JudgedLocked(id, slices.Contains(nobodys, id))
	}
}

// unrecordedLocked returns the names of b that only memory has: b was dirty, and what is
// adopted has its bytes, but not these names of it.
func (a *Adoption) unrecordedLocked(b *residency.Block, recorded []block.Name) (all []*names.Name) {
	if b.HasLowerCopy() {
		return nil
	}
	for _, n := range b.Names() {
		if !slices.ContainsFunc(recorded, func(r block.Name) bool {
			return r.Namespace == n.Namespace() && r.Key == n.Key() && r.Seq == n.Seq()
		}) {
			all = append(all, n)
		}
	}
	return all
}

// placeLocked records where a block lies in the cold tier. One in another process's file
// may come to be this rank's own; never the other way round, as this rank would
// then keep no account of what it stored.
func (a *Adoption) placeLocked(b *residency.Block, foreign bool) {
	x := a.exchange
	switch {
	case foreign && !b.Cold:
		b.Cold, b.Below.OtherOwner = true, true
		x.state.PlacementChangedLocked(b)
	case !foreign && (!b.Cold || b.Below.OtherOwner):
		b.Below.OtherOwner = false
		if b.InAny() { // it can't leave now, and is used: what is young would leave in its place
			x.state.Cold.StoredLocked(b)
		} else {
			x.state.Cold.AdoptLocked(b)
		}
	}
}

func (a *Adoption) countLocked(blocks, names int, bytes int64) {
	if a.own {
		return
	}
	for _, st := range []*residency.RecoverStats{&a.Done, &a.exchange.state.Count.Stats.Adopted} {
		st.Blocks, st.Names, st.Bytes = st.Blocks+blocks, st.Names+names, st.Bytes+bytes
	}
}
