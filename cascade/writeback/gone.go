package writeback

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"cascadekv/cascade/residency"
)

// goneEvery is how often the cold tier is asked whether its files are still there.
const goneEvery = 30 * time.Second

// errGone: what a drain wrote was removed meanwhile.
var errGone = errors.New("somebody removes what is written: leave the directory alone while ranks run")

// GoneInBackground looks for blocks whose files somebody removed, and writes those
// that are still in memory again.
func (w *Writer) GoneInBackground(ctx context.Context) {
	tick := time.NewTicker(goneEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.restoreGone(ctx)
	}
}

// restoreGone does so once.
func (w *Writer) restoreGone(ctx context.Context) {
	lost, err := w.findGone(ctx)
	if err != nil && ctx.Err() == nil {
		w.state.Mu.Lock()
		w.state.NoteColdLocked(err)
		w.state.Mu.Unlock()
	}
	if len(lost) == 0 {
		return
	}
	if n, err := w.writeAll(ctx, lost); err != nil {
		w.state.Log.Warn("blocks whose files are gone are not all written again yet; they stay in memory", "tier", w.state.ColdName(), "written", n, "err", err)
	} else {
		w.state.Log.Info("blocks whose files are gone are written again", "tier", w.state.ColdName(), "blocks", n)
	}
}

// findGoneInTurn is findGone with the token to write held.
func (w *Writer) findGoneInTurn(ctx context.Context) ([]*residency.Block, error) {
	if err := w.writing.Take(ctx); err != nil {
		return nil, err
	}
	defer w.writing.Give()
	return w.findGone(ctx)
}

// findGone finds out which blocks the cold tier has lost to somebody who removed
// its files, and returns those of them that are still in memory: they are dirty
// again. The names of all others are withdrawn.
func (w *Writer) findGone(ctx context.Context) (kept []*residency.Block, err error) {
	within, cancel := context.WithTimeout(ctx, coldDeadline)
	defer cancel()
	ids, err := w.state.Cold.Files.Missing(within)
	if len(ids) == 0 {
		return nil, err
	}
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	lost := 0
	for _, id := range ids {
		b := w.state.Mu.Blocks[id]
		if b == nil || !b.Cold {
			continue
		}
		w.state.Cold.LeaveLocked(b, false)
		if b.InAny() {
			kept = append(kept, b)
			continue
		}
		lost++
		w.state.VanishLocked(b)
	}
	w.state.Cold.Stats.Errors++
	w.state.LogLocked(slog.LevelError, "somebody has removed files of the cold tier: blocks that are still in memory are written again, the others are lost; "+
		"keep purges and clean-ups away from lustre.dir while ranks run",
		"tier", w.state.ColdName(), "in_memory", len(kept), "lost", lost)
	return kept, err
}
