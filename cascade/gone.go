package cascade

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// goneEvery is how often the cold tier is asked whether its files are still there.
const goneEvery = 30 * time.Second

// errGone: what a drain wrote was removed meanwhile.
var errGone = errors.New("somebody removes what is written: leave the directory alone while ranks run")

// goneInBackground looks for blocks whose files somebody removed, and writes those
// that are still in memory again.
func (s *Store) goneInBackground(ctx context.Context) {
	tick := time.NewTicker(goneEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.restoreGone(ctx)
	}
}

// restoreGone does so once.
func (s *Store) restoreGone(ctx context.Context) {
	lost, err := s.findGone(ctx)
	if err != nil && ctx.Err() == nil {
		s.mu.Lock()
		s.noteColdLocked(err)
		s.mu.Unlock()
	}
	if len(lost) == 0 {
		return
	}
	if s.takeToken(ctx) != nil {
		return
	}
	defer s.giveToken()
	if n, err := s.writeAll(ctx, lost); err != nil {
		s.log.Warn("blocks whose files are gone are not all written again yet; they stay in memory", "tier", s.coldStats.Name, "written", n, "err", err)
	} else {
		s.log.Info("blocks whose files are gone are written again", "tier", s.coldStats.Name, "blocks", n)
	}
}

// findGone finds out which blocks the cold tier has lost to somebody who removed
// its files, and returns those of them that are still in memory: they are dirty
// again. The names of all others are withdrawn.
func (s *Store) findGone(ctx context.Context) (kept []*blockState, err error) {
	within, cancel := context.WithTimeout(ctx, coldDeadline)
	defer cancel()
	ids, err := s.cold.Missing(within)
	if len(ids) == 0 {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := 0
	for _, id := range ids {
		b := s.mu.blocks[id]
		if b == nil || !b.cold {
			continue
		}
		s.leaveColdLocked(b, false)
		if b.InAny() {
			kept = append(kept, b)
			continue
		}
		lost++
		s.vanishLocked(b)
	}
	s.coldStats.Errors++
	s.logLocked(slog.LevelError, "somebody has removed files of the cold tier: blocks that are still in memory are written again, the others are lost; "+
		"keep purges and clean-ups away from lustre.dir while ranks run",
		"tier", s.coldStats.Name, "in_memory", len(kept), "lost", lost)
	return kept, err
}
