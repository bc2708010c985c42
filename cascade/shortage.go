package cascade

import (
	"cmp"
	"log/slog"
	"slices"
)

// runShortLocked gives up some of what this rank keeps in the cold tier, which
// refuses blocks for want of room.
func (s *Store) runShortLocked() {
	if used := s.usedBelow(); s.mu.short.Refuse(s.now(), used) {
		s.logLocked(slog.LevelWarn, "the cold tier is full: what is least worth keeping in it is given up, and the rest merged",
			"tier", s.coldStats.Name, "used", used, "limit", s.mu.short.Limit())
	}
	if s.mu.short.MergeDue() {
		s.wakeCleanerLocked(false)
	}
}

// usedBelow is what the cold tier takes for this rank, in bytes.
func (s *Store) usedBelow() int64 {
	u := s.cold.Usage()
	return u.Used - u.Foreign
}

// mergeBudget is coldBudget for who does not hold the mutex.
func (s *Store) mergeBudget() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.coldBudgetLocked()
}

// mergeSoonLocked has the cold tier merge at once if a shortage asks for it,
// once blocks were given up, and inherit if that is due.
func (s *Store) mergeSoonLocked() {
	if !s.mu.short.MergeDue() && (s.mu.estate.settling || s.mu.room.policy == nil || s.shareLocked().Take() == 0) {
		return
	}
	s.mu.short.MergeRequested()
	wake(s.mergeNow)
}

// mergedAll notes that there is nothing to merge for the moment.
func (s *Store) mergedAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.short.Merged()
}

// rankCold gives a cold tier without a budget its policy at the first shortage, or
// when names are near their bound, and has it rank the blocks that are there, as old
// as their first names.
func (s *Store) rankCold() {
	type aged struct {
		block *blockState
		seq   uint64
	}
	var all []aged
	s.mu.Lock()
	needed := (s.mu.short.Limit() > 0 || s.namesTightLocked()) && s.mu.room.policy == nil
	if needed {
		p, err := s.newPolicy(s.last().stats.Policy, s.mu.short.Limit())
		if err != nil {
			s.mu.Unlock()
			s.log.Error("the cold tier gets no policy", "err", err)
			return
		}
		s.mu.room.policy, s.coldStats.Policy = p, p.Name()
		s.mu.room.ranking = true
		looked := 0
		for _, b := range s.mu.blocks {
			if looked++; looked%lookStep == 0 { // those that come meanwhile are ranked as they come
				s.mu.Unlock()
				s.mu.Lock()
			}
			if b.cold && !b.below.foreign && len(b.Names()) > 0 {
				all = append(all, aged{b, b.Names()[0].Seq()})
			}
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(x, y aged) int { return cmp.Compare(x.seq, y.seq) })
	for len(all) > 0 {
		n := min(len(all), shrinkStep)
		s.mu.Lock()
		for _, one := range all[:n] {
			if b := one.block; b.cold && !b.below.foreign && s.mu.blocks[b.Info.ID] == b {
				s.rankLocked(b, false)
				s.syncColdHoldLocked(b)
			}
		}
		s.mu.Unlock()
		all = all[n:]
	}
	if needed {
		s.mu.Lock()
		s.mu.room.ranking = false
		s.mu.Unlock()
	}
}
