package cascade

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"cascadekv/cascade/policy"
)

const (
	// shortPart is the part of what the cold tier takes for this rank, as one in so
	// many, that one step of a shortage gives up, and shortFloor that which no
	// shortage takes: room that this rank makes may be filled by others at once.
	shortPart  = 16
	shortFloor = 2

	// shortStep is the least time between two steps: file systems free space long
	// after files are gone. shortRest is how long the tier must not have refused
	// anything for the shortage to be over.
	shortStep = 30 * time.Second
	shortRest = time.Minute
)

// shortage is a time in which the cold tier has no room, whatever the budget says.
// It is a policy: it has no clock and does nothing.
//
// What this rank takes when it begins, less a step, is its budget for as long as
// it lasts. While the tier goes on to refuse though that was done, there are more
// steps.
type shortage struct {
	limit   int64     // bytes, of what the tier takes for this rank; 0: there is room
	least   int64     // limit goes no lower
	step    int64     // bytes
	refused time.Time // the last time
	lowered time.Time // when limit was
	merged  bool      // since then all was merged that can be
	owed    bool      // a merge is to be asked for
	emptied int64     // bytes that the tier took when the last piece of it was emptied; 0: none was
	tried   time.Time // when that was
}

// refuse notes that the tier, which takes used bytes for this rank, is full. It
// tells whether the limit is lower now. Where it is not, a piece of the tier may be
// due to be emptied.
func (h *shortage) refuse(now time.Time, used int64) bool {
	h.refused = now
	switch {
	case h.limit == 0:
		h.step, h.least, h.limit = used/shortPart, max(used/shortFloor, 1), max(used, 1)
	case now.Sub(h.lowered) < shortStep, used > h.limit && !h.merged, h.limit == h.least:
		h.owed = h.owed || used > h.limit && now.Sub(h.tried) >= shortStep
		return false
	}
	h.limit = max(min(h.limit, used)-h.step, h.least)
	h.lowered, h.merged, h.owed, h.emptied = now, false, true, 0
	return true
}

// accept notes that the tier, which takes used bytes, has taken blocks though there
// was no room: what could not be merged for want of it may be now.
func (h *shortage) accept(now time.Time, used int64) {
	if now.Sub(h.refused) >= shortRest {
		*h = shortage{}
	}
	h.owed = h.owed || h.limit > 0 && used > h.limit
}

// grow notes that so many bytes more are this rank's.
func (h *shortage) grow(bytes int64) {
	if h.limit > 0 {
		h.limit += bytes
	}
}

// evacuate tells whether a piece of the tier is to be emptied, as merging it does
// not do: while the tier takes more than it should, and at once again if the last
// time did help. What that made room for may have been filled since, so when it
// seems not to have helped there is a next time all the same, later.
func (h *shortage) evacuate(now time.Time, used int64) bool {
	switch {
	case h.limit == 0, used <= h.limit, now.Sub(h.refused) >= shortRest:
		return false
	case h.emptied > 0 && used >= h.emptied && now.Sub(h.tried) < shortStep:
		return false
	}
	h.emptied, h.tried = used, now
	return true
}

// runShortLocked gives up some of what this rank keeps in the cold tier, which
// says that it is full.
func (s *Store) runShortLocked() {
	if used := s.usedBelow(); s.mu.short.refuse(s.now(), used) {
		s.logLocked(slog.LevelWarn, "the cold tier is full: what is least worth keeping in it is given up, and the rest merged",
			"tier", s.coldStats.Name, "used", used, "limit", s.mu.short.limit)
	}
	if s.mu.short.owed {
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
	if !s.mu.short.owed && (s.mu.estate.settling || s.mu.room.policy == nil || s.shareLocked().Take() == 0) {
		return
	}
	s.mu.short.owed = false
	select {
	case s.mergeNow <- struct{}{}:
	default:
	}
}

// mergedAll notes that there is nothing to merge for the moment.
func (s *Store) mergedAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.short.merged = true
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
	needed := (s.mu.short.limit > 0 || s.namesTightLocked()) && s.mu.room.policy == nil
	if needed {
		p, err := policy.New(s.last().stats.Policy, s.mu.short.limit)
		if err != nil {
			s.mu.Unlock()
			s.log.Error("the cold tier gets no policy", "err", err)
			return
		}
		s.mu.room.policy, s.coldStats.Policy = p, p.Name()
		s.mu.room.ranking = true
		s.mu.ranked = s.rankingsLocked()
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
