package cascade

import (
	"context"

	"cascadekv/cascade/residency"
)

// A store may be followed by another one in the same process, with another
// program (exec), while clients go on reading views and filling stages in the
// arena. The first one settles what must not be lost, and leaves; the next one is
// opened on tiers that were given the claims, the ranges in use, and hands a view
// or a stage out for each of them.

// keptRange is what keeps one range of the arena for a client.
type keptRange struct {
	view  *residency.View
	stage *Stage
}

// takeClaimsLocked makes views and stages of what the memory tiers keep. The
// caller holds the mutex, and has not dropped what has no name yet.
func (s *Store) takeClaimsLocked() {
	m := s.state.Shared()
	if m == nil {
		return
	}
	for _, r := range m.Tier.Claimed() {
		var c keptRange
		switch {
		case r.Pin != nil:
			c.view = s.state.ClaimedViewLocked(r.Pin, m)
		case r.Slot != nil:
			c.stage = &Stage{store: s, mem: m, slot: r.Slot, size: int64(len(r.Slot.Bytes())), kept: true}
		}
		s.mu.claimed = append(s.mu.claimed, c)
	}
}

// ClaimedView hands over the view of a claim, in the order in which the tier was
// given them, held as by Keep; tier is what Tier will return. It is nil when the
// range could not be kept, or was handed over before.
func (s *Store) ClaimedView(i int, tier string) *residency.View {
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	if i < 0 || i >= len(s.mu.claimed) || s.mu.claimed[i].view == nil {
		return nil
	}
	v := s.mu.claimed[i].view
	s.mu.claimed[i].view = nil
	if tier != "" {
		v.ServedBy(tier)
	}
	return v
}

// ClaimedStage likewise hands over a stage.
func (s *Store) ClaimedStage(i int) *Stage {
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	if i < 0 || i >= len(s.mu.claimed) {
		return nil
	}
	st := s.mu.claimed[i].stage
	s.mu.claimed[i].stage = nil
	return st
}

// DropClaims ends the claims that nobody took.
func (s *Store) DropClaims() {
	s.state.Mu.Lock()
	left := s.mu.claimed
	s.mu.claimed = nil
	s.state.Mu.Unlock()
	for _, c := range left {
		if c.view != nil {
			c.view.Release()
		}
		if c.stage != nil {
			c.stage.Abort()
		}
	}
}

// Settle makes changes of names in the cold tier durable, so that a store that
// follows undoes no deletion. It writes no block. Nothing ends with it.
func (s *Store) Settle(ctx context.Context) error {
	if s.state.Cold == nil {
		return nil
	}
	if err := s.others.FlushTombstones(ctx); err != nil {
		return err
	}
	return s.write.SyncInTurn(ctx)
}

// Leave closes the cold tier for the store that follows at once in this process,
// and leaves what is in memory where it is: dirty blocks are not written, views
// and stages keep their bytes. It reports whether it ended the store. Without a
// cold tier it does not: there is nothing to close.
func (s *Store) Leave(ctx context.Context) (ended bool, err error) {
	if s.state.Cold == nil {
		return false, nil
	}
	if err := s.shut(ctx); err != nil {
		return true, err
	}
	if err := s.write.SyncCold(ctx); err != nil {
		s.state.Log.Warn("not all changes of names in the cold tier are durable", "err", err)
	}
	return true, s.state.Cold.Close()
}
