package cascade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// errNotShared: the store has no cold tier that ranks share.
var errNotShared = errors.New("cascade: the cold tier has no parts of other ranks")

// Parts lists what runs of this and other ranks left in the cold tier, or are
// writing to it. Nil where ranks do not share it.
func (s *Store) Parts(ctx context.Context) ([]tiers.Part, error) {
	if s.cold == nil {
		return nil, nil
	}
	return s.cold.Parts(ctx)
}

// Adopt takes in what another run of some rank left in the cold tier: its blocks
// are hits from then on, here and, as other ranks are told of them, there. A
// name that is newer here stays as it is. With a budget for the cold tier it is
// inherited if that is possible. Adopting twice does nothing.
func (s *Store) Adopt(ctx context.Context, p tiers.Part) (RecoverStats, error) {
	if s.cold == nil {
		return RecoverStats{}, errNotShared
	}
	if s.limits.Load().ColdBytes > 0 {
		if done, inherited, err := s.inherit(ctx, p); inherited || err != nil {
			return done, err
		}
	}
	a := adoption{store: s}
	if err := s.cold.Adopt(ctx, p, a.gather); err != nil {
		return RecoverStats{}, fmt.Errorf("cascade: adopt the part %d of rank %d: %w", p.Incarnation, p.Rank, err)
	}
	err := a.run()
	if s.catalogue == nil { // else its rounds tell
		s.settleEstate(nil, nil)
	}
	return a.done, err
}

// adoption is one call of Adopt.
type adoption struct {
	store   *Store
	entries []tiers.Entry
	done    RecoverStats
}

func (a *adoption) gather(e tiers.Entry) error {
	a.entries = append(a.entries, e)
	return nil
}

// adoptStep bounds what is taken in with the mutex held.
const adoptStep = 256

// run takes in blocks in the order of their chains, so that a name finds its
// parent.
func (a *adoption) run() error {
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

func (a *adoption) step(entries []tiers.Entry) error {
	s := a.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkOpenLocked(); err != nil {
		return err
	}
	for _, e := range entries {
		for _, n := range e.Dropped {
			s.unbindBeforeLocked(n.Namespace, n.Key, n.Seq)
		}
		if !e.Info.ID.IsZero() {
			a.take(e)
		}
	}
	return nil
}

// take takes in one block with those of its names that are not known newer.
func (a *adoption) take(e tiers.Entry) {
	s := a.store
	var names []block.Name
	for _, n := range e.Names {
		s.mu.names.Observe(n.Seq)
		here := s.mu.names.Get(n.Namespace, n.Key)
		if held := here != nil && here.Block() != nil; held && here.Put() < n.Seq || !held && s.hasNameRoomLocked() {
			names = append(names, n)
		}
	}
	known := s.mu.blocks[e.Info.ID] != nil
	if len(names) == 0 && !known {
		s.noteColdLocked(s.cold.Evict(e.Info.ID)) // nobody would ever ask for it
		return
	}
	b := s.foundLocked(e.Info)
	if b == nil {
		return
	}
	if !known {
		a.count(1, 0, e.Info.Size)
	}
	a.place(b, e.Foreign)
	for _, n := range names {
		s.bindRecordedLocked(n, b)
	}
	a.count(0, len(names), 0)
}

// place notes where a block lies in the cold tier. One in another process's file
// may come to be this rank's own; never the other way round, as this rank would
// then keep no account of what it stored.
func (a *adoption) place(b *blockState, foreign bool) {
	s := a.store
	switch {
	case foreign && !b.cold:
		b.cold, b.below.foreign = true, true
		s.placementChangedLocked(b)
	case !foreign && (!b.cold || b.below.foreign):
		b.below.foreign = false
		s.inheritColdLocked(b)
	}
}

func (a *adoption) count(blocks, names int, bytes int64) {
	for _, st := range []*RecoverStats{&a.done, &a.store.mu.stats.Adopted} {
		st.Blocks, st.Names, st.Bytes = st.Blocks+blocks, st.Names+names, st.Bytes+bytes
	}
}
