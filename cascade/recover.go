package cascade

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// recovery gathers what the tiers found. Several tiers, and several records of
// one tier, may speak of the same name: the highest Seq is the truth.
type recovery struct {
	names map[nameID]claim
	stale []claim // records that lost and are to be withdrawn
}

type nameID struct{ ns, key string }

type claim struct {
	name    block.Name
	block   *blockState
	dropped bool
}

// recover rebuilds the index from the tiers.
func (s *Store) recover() error {
	r := recovery{names: map[nameID]claim{}}
	found := func(m *memTier) func(tiers.Entry) error {
		return func(e tiers.Entry) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.recoverEntryLocked(&r, e, m)
			return nil
		}
	}
	if s.cold != nil {
		if err := s.cold.Recover(found(nil)); err != nil {
			return fmt.Errorf("cascade: recover %s: %w", s.coldStats.Name, err)
		}
	}
	for _, m := range s.mem {
		if err := m.tier.Recover(found(m)); err != nil {
			return fmt.Errorf("cascade: recover %s: %w", m.stats.Name, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recoverNamesLocked(&r)
	s.takeClaimsLocked()
	s.recoverBlocksLocked()
	for _, ns := range s.mu.names.Spaces() {
		sp := s.mu.names.Space(ns)
		sp.Recovered = len(sp.List())
	}
	s.mu.stats.Recovered = RecoverStats{Blocks: len(s.mu.blocks), Names: s.mu.names.Len(), Bytes: s.mu.stats.BytesStored}
	return nil
}

// recoverEntryLocked takes in one entry; m is nil for the cold tier.
func (s *Store) recoverEntryLocked(r *recovery, e tiers.Entry, m *memTier) {
	for _, n := range e.Dropped {
		s.claimNameLocked(r, claim{name: n, dropped: true})
	}
	if e.Info.ID.IsZero() {
		return
	}
	b := s.foundLocked(e.Info)
	switch {
	case b == nil:
		return
	case m == nil:
		b.cold, b.below.foreign = true, e.Foreign
	case !b.In(m.index):
		if len(e.Names) > 0 {
			b.fingerprint = fingerprint(e.Names[0].Namespace, e.Names[0].Key)
		}
		s.enterLocked(b, m)
	}
	for _, n := range e.Names {
		s.claimNameLocked(r, claim{name: n, block: b})
	}
	s.mu.nextProv = max(s.mu.nextProv, block.ProvisionalNumber(e.Info.ID))
}

// foundLocked returns the block that a tier or another rank has, a new one if
// it is not there. It is nil when they disagree on what the id holds: neither
// copy but the first is believed.
func (s *Store) foundLocked(info block.Info) *blockState {
	b := s.mu.blocks[info.ID]
	switch {
	case b == nil:
		b = newBlock(info)
		s.mu.blocks[info.ID] = b
		s.mu.stats.BytesStored += info.Size
	case b.Info != info:
		s.logLocked(slog.LevelError, "tiers disagree on a block; the second copy is not used", "block", info.ID)
		return nil
	}
	return b
}

func (s *Store) claimNameLocked(r *recovery, c claim) {
	s.mu.names.Observe(c.name.Seq)
	k := nameID{c.name.Namespace, c.name.Key}
	old, known := r.names[k]
	if known && old.name.Seq >= c.name.Seq {
		old, c = c, old
	}
	r.names[k] = c
	if known && old.block != nil && old.block != c.block {
		r.stale = append(r.stale, old)
	}
}

// recoverNamesLocked attaches the names that won, parents before children where
// the order of their writing has that.
func (s *Store) recoverNamesLocked(r *recovery) {
	for _, c := range r.stale {
		c.name.Seq++ // the record that won is at least two ticks younger: see names.Graph.Put
		s.unlinkLocked(c.block, c.name)
	}
	live := make([]claim, 0, len(r.names))
	for _, c := range r.names {
		if !c.dropped {
			live = append(live, c)
		}
	}
	slices.SortFunc(live, func(x, y claim) int { return cmp.Compare(x.name.Seq, y.name.Seq) })
	for _, c := range s.trimLocked(live) {
		if b := c.block; b.cold && !b.below.foreign && len(b.Names()) == 0 {
			s.inheritColdLocked(b) // with its first name
		}
		s.bindRecordedLocked(c.name, c.block)
	}
}

// recoverBlocksLocked drops blocks that nobody names and queues those without
// an id.
func (s *Store) recoverBlocksLocked() {
	for _, b := range s.mu.blocks {
		if len(b.Names()) == 0 {
			s.forgetLocked(b)
		} else if b.Info.ID.IsProvisional() {
			s.pending.push(b)
		}
	}
}
