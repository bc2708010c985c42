package cascade

import (
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
	cold, ok := s.cold.(tiers.Shared)
	if !ok {
		return nil, nil
	}
	return cold.Parts(ctx)
}

// Adopt takes in what another run of some rank left in the cold tier: its blocks
// are hits from then on, here and, as other ranks are told of them, there. A
// name that is newer here stays as it is. Adopting twice does nothing.
func (s *Store) Adopt(ctx context.Context, p tiers.Part) (RecoverStats, error) {
	cold, ok := s.cold.(tiers.Shared)
	if !ok {
		return RecoverStats{}, errNotShared
	}
	a := adoption{store: s}
	err := cold.Adopt(ctx, p, func(e tiers.Entry) error {
		a.entries = append(a.entries, e)
		return nil
	})
	if err != nil {
		return RecoverStats{}, fmt.Errorf("cascade: adopt the part %d of rank %d: %w", p.Incarnation, p.Rank, err)
	}
	err = a.run()
	return a.done, err
}

// adoption is one call of Adopt.
type adoption struct {
	store   *Store
	entries []tiers.Entry
	done    RecoverStats
}

// adoptStep bounds what is taken in with the mutex held.
const adoptStep = 256

// run takes in blocks in the order of their chains, so that a name finds its
// parent.
func (a *adoption) run() error {
	slices.SortStableFunc(a.entries, func(x, y tiers.Entry) int { return compareSeq(x, y) })
	for len(a.entries) > 0 {
		n := min(len(a.entries), adoptStep)
		if err := a.step(a.entries[:n]); err != nil {
			return err
		}
		a.entries = a.entries[n:]
	}
	return nil
}

func compareSeq(x, y tiers.Entry) int {
	first := func(e tiers.Entry) (least uint64) {
		for i, n := range e.Names {
			if i == 0 || n.Seq < least {
				least = n.Seq
			}
		}
		return least
	}
	switch a, b := first(x), first(y); {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (a *adoption) step(entries []tiers.Entry) error {
	s := a.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	for _, e := range entries {
		for _, n := range e.Dropped {
			s.dropAdopted(n)
		}
		if !e.Info.ID.IsZero() {
			a.take(e)
		}
	}
	return nil
}

// dropAdopted withdraws a name that another run withdrew after what is known
// here.
func (s *Store) dropAdopted(gone block.Name) {
	if sp := s.spaces[gone.Namespace]; sp != nil {
		if n := sp.byKey[gone.Key]; n != nil && n.block != nil && n.put < gone.Seq {
			s.unbind(n)
		}
	}
}

// take takes in one block with those of its names that are not known newer.
func (a *adoption) take(e tiers.Entry) {
	s := a.store
	b := s.blocks[e.Info.ID]
	if b != nil && b.info != e.Info {
		s.log.Error("tiers disagree on a block; the second copy is not used", "block", e.Info.ID)
		return
	}
	var names []block.Name
	for _, n := range e.Names {
		s.seq = max(s.seq, n.Seq)
		if known := s.space(n.Namespace).node(n.Key); known.block == nil || known.put < n.Seq {
			names = append(names, n)
		} else {
			known.prune()
		}
	}
	switch {
	case len(names) == 0 && b == nil:
		s.noteCold(s.cold.Evict(e.Info.ID)) // nobody would ever ask for it
		return
	case b == nil:
		b = &entity{info: e.Info}
		s.blocks[e.Info.ID] = b
		s.stats.BytesStored += e.Info.Size
		a.count(1, 0, e.Info.Size)
	}
	if !b.cold {
		b.cold, b.below.foreign = true, e.Foreign
		s.account(b)
	}
	for _, n := range names {
		s.attachAdopted(n, b)
	}
	a.count(0, len(names), 0)
}

func (a *adoption) count(blocks, names int, bytes int64) {
	for _, st := range []*RecoverStats{&a.done, &a.store.stats.Adopted} {
		st.Blocks, st.Names, st.Bytes = st.Blocks+blocks, st.Names+names, st.Bytes+bytes
	}
}

// attachAdopted points a name at a block that the cold tier has on record with
// it.
func (s *Store) attachAdopted(e block.Name, b *entity) {
	n := s.space(e.Namespace).node(e.Key)
	was := n.block
	if was != nil {
		s.endLeases(n)
		s.detach(n)
	}
	n.setParent(e.Parent)
	n.entry, n.put = e, e.Seq
	s.attach(n, b)
	if was != nil && len(was.names) == 0 {
		s.forget(was)
	}
}
