package cascade

import (
	"context"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/fault"
)

const (
	// mergeEvery is how often the cold tier is asked to merge.
	mergeEvery = 10 * time.Second

	// mergeDeadline bounds one merge; what it moved by then stays moved.
	mergeDeadline = 10 * time.Minute
)

// mergeInBackground has the cold tier give back the space of what it does not
// hold any more.
func (s *Store) mergeInBackground(ctx context.Context) {
	defer fault.Guard()()
	tick := time.NewTicker(mergeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.mergeNow:
		}
		s.mergeAll(ctx)
	}
}

// mergeAll inherits what is due, and has the cold tier merge, and empties it where
// that does not help, until there is nothing more to gain.
func (s *Store) mergeAll(ctx context.Context) {
	s.inheritDue(ctx)
	for s.mergeOnce(ctx) || s.evacuate(ctx) {
	}
	s.mergedAll()
}

// mergeOnce reports whether merging again may be worth it.
func (s *Store) mergeOnce(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, mergeDeadline)
	defer cancel()
	began := s.now()
	m, err := s.cold.Merge(limited, s.mergeBudget(), s.moved)
	if m.Merges > 0 {
		s.log.Info("merged segments", "tier", s.coldStats.Name, "segments", m.Segments, "blocks", m.Blocks, "bytes", m.Bytes,
			"freed", m.Freed(), "duration", s.now().Sub(began))
	}
	if err != nil && ctx.Err() == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.noteColdLocked(err)
	}
	return m.Segments > 0 && err == nil
}

// moved has it published where blocks lie now.
func (s *Store) moved(ids []block.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if b := s.mu.blocks[id]; b != nil {
			s.enqueuePublishAllLocked(b)
		}
	}
}
