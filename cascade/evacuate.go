package cascade

import (
	"context"

	"cascadekv/internal/block"
)

// evacuateShare bounds what is taken up into memory at once, as one part in so many
// of the last memory tier.
const evacuateShare = 8

// evacuate is for a full cold tier that cannot merge, for want of room for what it
// would move: heads of chains keep a little of everything. It takes what is left
// in the emptiest piece of the tier up into memory, and out of the tier, which can
// then give the piece back. In memory those blocks are dirty. It reports whether
// there was such a piece.
func (s *Store) evacuate(ctx context.Context) bool {
	if !s.mustEvacuate() {
		return false
	}
	capacity, _ := s.lastRoom()
	ids := s.cold.Sparsest(capacity / evacuateShare)
	views, complete := s.takeUp(ctx, ids)
	defer func() {
		for _, v := range views {
			v.Release()
		}
	}()
	if len(ids) == 0 || !complete {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wakeWaitersLocked()
	for _, id := range ids {
		b := s.mu.blocks[id]
		if b == nil || !b.cold || b.below.foreign || !b.InAny() && b.Needed() {
			continue
		}
		if err := s.cold.Evict(id); err != nil {
			s.noteColdLocked(err)
			continue
		}
		s.leaveColdLocked(b, false)
		s.coldStats.Evicted++
		if !b.InAny() {
			s.vanishLocked(b)
		}
	}
	s.mu.coldDown = s.now() // what is dirty now should not wait
	s.wakeCleanerLocked(false)
	return true
}

// mustEvacuate reports whether the cold tier is to be emptied a little.
func (s *Store) mustEvacuate() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.short.Evacuate(s.now(), s.usedBelow())
}

// takeUp brings blocks of the cold tier into memory and holds them there. complete
// is false when one that must not be lost does not come.
func (s *Store) takeUp(ctx context.Context, ids []block.ID) (views []*View, complete bool) {
	var coming, fresh []*fetch
	s.mu.Lock()
	for _, id := range ids {
		b := s.mu.blocks[id]
		if b == nil {
			continue
		}
		if v := s.pinFastestLocked(b); v != nil {
			views = append(views, v.background())
		} else if f := s.joinFetchLocked(b, &fresh); f != nil {
			coming = append(coming, f)
		}
	}
	for _, f := range fresh {
		f.price = anyBlock // what does not come up is given up itself
	}
	s.bringUpLocked(fresh)
	s.mu.Unlock()
	within, cancel := s.untilFetched(ctx)
	defer cancel()
	for _, f := range coming {
		if v := s.await(within, f); v != nil {
			views = append(views, v.background())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if b := s.mu.blocks[id]; b != nil && b.cold && !b.InAny() && b.Needed() {
			return views, false
		}
	}
	return views, true
}
