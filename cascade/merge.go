package cascade

import (
	"context"
	"time"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

const (
	// mergeEvery is how often the cold tier is asked to merge.
	mergeEvery = 10 * time.Second

	// mergeDeadline bounds one merge; what it moved by then stays moved.
	mergeDeadline = 10 * time.Minute
)

// mergeInBackground has the cold tier give back the space of what it does not
// hold any more.
func (s *Store) mergeInBackground(ctx context.Context, cold tiers.Merging) {
	tick := time.NewTicker(mergeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.mergeNow:
		}
		for s.mergeOnce(ctx, cold) || s.evacuate(ctx) {
		}
		s.mergedAll()
	}
}

// mergeOnce reports whether merging again may be worth it.
func (s *Store) mergeOnce(ctx context.Context, cold tiers.Merging) bool {
	limited, cancel := context.WithTimeout(ctx, mergeDeadline)
	defer cancel()
	more, err := cold.Merge(limited, s.mergeBudget(), s.moved)
	if err != nil && ctx.Err() == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.noteCold(err)
	}
	return more && err == nil
}

// moved tells the homes of blocks where those lie now.
func (s *Store) moved(ids []block.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if b := s.blocks[id]; b != nil {
			s.sayAll(b)
		}
	}
}
