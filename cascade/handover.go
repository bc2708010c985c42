package cascade

import (
	"context"

	"cascadekv/tiers"
)

// A store may be followed by another one in the same process, with another
// program (exec), while clients go on reading views and filling stages in the
// arena. The first one settles what must not be lost, and leaves; the next one is
// opened on tiers that were told of the claims, the ranges in use, and hands a view
// or a stage out for each of them.

// keptRange is what keeps one range of the arena for a client.
type keptRange struct {
	view  *View
	stage *Stage
}

// takeClaimsLocked makes views and stages of what the memory tiers keep. The
// caller holds the mutex, and has not dropped what has no name yet.
func (s *Store) takeClaimsLocked() {
	m := s.shared()
	if m == nil {
		return
	}
	for _, r := range m.tier.Claimed() {
		var c keptRange
		switch {
		case r.Pin != nil:
			c.view = s.claimedViewLocked(r.Pin, m)
		case r.Slot != nil:
			c.stage = &Stage{store: s, mem: m, slot: r.Slot, size: int64(len(r.Slot.Bytes())), kept: true}
		}
		s.mu.claimed = append(s.mu.claimed, c)
	}
}

// claimedViewLocked is a view of a block that the tier still has, or of bytes
// that are nothing else any more.
func (s *Store) claimedViewLocked(p tiers.Pin, m *memTier) *View {
	info := p.Info()
	v := &View{store: s, pin: p, bytes: p.Bytes(), id: info.ID, tier: m.stats.Name, kept: true}
	if b := s.mu.blocks[info.ID]; !info.ID.IsZero() && b != nil && b.In(m.index) {
		s.holdLocked(b, m.index)
		v.block, v.mem, v.stay = b, m, b.at[m.index].stay
	} else {
		v.block = newBlock(info)
	}
	v.block.busy++
	s.mu.stats.Views++
	s.kept.Add(1)
	return v
}

// ClaimedView hands over the view of a claim, in the order in which the tier was
// told of them, held as Keep says; tier is what Tier is to say. It is nil when the
// range could not be kept, or was handed over before.
func (s *Store) ClaimedView(i int, tier string) *View {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i < 0 || i >= len(s.mu.claimed) || s.mu.claimed[i].view == nil {
		return nil
	}
	v := s.mu.claimed[i].view
	s.mu.claimed[i].view = nil
	if tier != "" {
		v.tier = tier
	}
	return v
}

// ClaimedStage likewise hands over a stage.
func (s *Store) ClaimedStage(i int) *Stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i < 0 || i >= len(s.mu.claimed) {
		return nil
	}
	st := s.mu.claimed[i].stage
	s.mu.claimed[i].stage = nil
	return st
}

// DropClaims ends the claims that nobody took.
func (s *Store) DropClaims() {
	s.mu.Lock()
	left := s.mu.claimed
	s.mu.claimed = nil
	s.mu.Unlock()
	for _, c := range left {
		if c.view != nil {
			c.view.Release()
		}
		if c.stage != nil {
			c.stage.Abort()
		}
	}
}

// Settle makes what the cold tier was told of names durable, so that a store that
// follows undoes no deletion. It writes no block. Nothing ends with it.
func (s *Store) Settle(ctx context.Context) error {
	if s.cold == nil {
		return nil
	}
	if err := s.flushTombstones(ctx); err != nil {
		return err
	}
	return s.syncInTurn(ctx)
}

// Leave closes the cold tier for the store that follows at once in this process,
// and leaves what is in memory where it is: dirty blocks are not written, views
// and stages keep their bytes. It reports whether it ended the store. Without a
// cold tier it does not: there is nothing to close.
func (s *Store) Leave(ctx context.Context) (ended bool, err error) {
	if s.cold == nil {
		return false, nil
	}
	if err := s.shut(ctx); err != nil {
		return true, err
	}
	if err := s.syncCold(ctx); err != nil {
		s.log.Warn("not all that lustre was told of names is durable", "err", err)
	}
	return true, s.cold.Close()
}
