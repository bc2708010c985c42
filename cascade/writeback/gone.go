package writeback

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/internal/losslog"
)

// goneEvery is how often the cold tier is asked whether its files are still there.
const goneEvery = 30 * time.Second

// Why a drain ends with blocks that are in memory only.
var (
	// errGone: files that this rank wrote, and has not removed, are gone.
	errGone = errors.New("somebody removes what is written: leave the directory alone while ranks run")

	// errLeft: files that copies in memory are of are gone, because their owner, which may be
	// this rank, merged them or had no space for them.
	errLeft = errors.New("files that held copies of blocks in memory go while they are written: drain once more when merges and low space are over")
)

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
	own, copies, err := w.findGone(ctx)
	if err != nil && ctx.Err() == nil {
		w.state.Mu.Lock()
		w.state.NoteColdLocked(err)
		w.state.Mu.Unlock()
	}
	lost := slices.Concat(own, copies)
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
func (w *Writer) findGoneInTurn(ctx context.Context) (own, copies []*residency.Block, err error) {
	if err := w.writing.Take(ctx); err != nil {
		return nil, nil, err
	}
	defer w.writing.Give()
	return w.findGone(ctx)
}

// findGone finds out which blocks are in memory only, because what was below is gone: own
// are those that this rank had in its files, copies those of which another rank had the
// bytes. All are dirty again.
func (w *Writer) findGone(ctx context.Context) (own, copies []*residency.Block, err error) {
	ctx, cancel := context.WithTimeout(ctx, coldDeadline)
	defer cancel()
	if own, err = w.findOwnGone(ctx); err != nil {
		return own, nil, err
	}
	copies, err = w.findCopiesGone(ctx)
	return own, copies, err
}

// findOwnGone finds out which blocks the cold tier has lost to somebody who removed
// its files, and returns those of them that are still in memory. The names of all others
// are withdrawn.
func (w *Writer) findOwnGone(ctx context.Context) (kept []*residency.Block, err error) {
	ids, err := w.state.Cold.Files.Missing(ctx)
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
		w.state.Count.LostLocked(losslog.Gone, w.state.Cold, b.Names()...)
		w.state.VanishLocked(b)
	}
	w.state.Cold.Stats.Errors++
	w.state.LogLocked(slog.LevelError, "somebody has removed files of the cold tier: blocks that are still in memory are written again, the others are lost; "+
		"keep purges and clean-ups away from lustre.dir while ranks run",
		"tier", w.state.ColdName(), "in_memory", len(kept), "lost", lost)
	return kept, err
}

// findCopiesGone finds out which copies are of files that are gone: whoever had them has
// merged them, given them up or lost them. Where the bytes still are, if anywhere, the
// homes of their ids know.
func (w *Writer) findCopiesGone(ctx context.Context) (lost []*residency.Block, err error) {
	copies := map[string][]*residency.Block{} // by path
	w.eachCopy(func(b *residency.Block) { copies[b.From.Path] = append(copies[b.From.Path], b) })
	if len(copies) == 0 {
		return nil, nil
	}
	gone, err := w.state.Cold.Files.Gone(ctx, slices.Collect(maps.Keys(copies))...)
	for _, path := range gone {
		lost = append(lost, w.lose(path, copies[path])...)
	}
	if len(lost) > 0 {
		w.state.Log.Info("files that copies in memory are of are gone: they are written again unless another rank has the bytes", "tier", w.state.ColdName(), "files", len(gone), "blocks", len(lost))
	}
	return lost, err
}

// eachCopy calls fn, with the mutex held, for the blocks in memory that are copies of what
// lies in a file of which this rank does not know what it holds.
func (w *Writer) eachCopy(fn func(*residency.Block)) {
	for _, m := range w.state.Mem {
		for start, more := 0, true; more; start += residency.LookStep {
			w.state.Mu.Lock()
			end := min(start+residency.LookStep, len(m.Nodes))
			for _, b := range m.Nodes[min(start, end):end] {
				if b != nil && b.From != nil {
					fn(b)
				}
			}
			more = end < len(m.Nodes)
			w.state.Mu.Unlock()
		}
	}
}

// lose makes those dirty that are still copies of what was in a file.
func (w *Writer) lose(path string, copies []*residency.Block) (lost []*residency.Block) {
	for some := range slices.Chunk(copies, residency.LookStep) {
		w.state.Mu.Lock()
		for _, b := range some {
			if b.From != nil && b.From.Path == path && b.InAny() {
				w.state.Cold.LoseLocked(b)
				lost = append(lost, b)
			}
		}
		w.state.Mu.Unlock()
	}
	return lost
}
