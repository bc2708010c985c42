package writeback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"cascadekv/cascade/residency"
)

// FinalizePending gives every block in memory its id.
func (w *Writer) FinalizePending(ctx context.Context) error {
	for _, b := range w.withoutID() {
		if err := ctx.Err(); err != nil {
			return err
		}
		w.state.Mu.Lock()
		v := w.state.PinFastestLocked(b)
		w.state.Mu.Unlock()
		if v != nil {
			w.FinalizeID(v.Background())
			v.Release()
		}
	}
	return nil
}

// withoutID lists the blocks that were acknowledged and not hashed yet.
func (w *Writer) withoutID() []*residency.Block {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	return w.blocksLocked(func(b *residency.Block) bool { return b.CountedPending })
}

// blocksLocked lists the blocks that are wanted, in no order.
func (w *Writer) blocksLocked(want func(*residency.Block) bool) (all []*residency.Block) {
	for _, b := range w.state.Mu.Blocks {
		if want(b) {
			all = append(all, b)
		}
	}
	return all
}

// Drain writes every dirty block that has an id to the cold tier and makes changes of
// names there durable. It returns how many blocks it wrote.
func (w *Writer) Drain(ctx context.Context) (written int, err error) {
	if w.state.Cold == nil {
		return 0, nil
	}
	if err := w.writing.Take(ctx); err != nil {
		return 0, err
	}
	defer w.writing.Give()
	if _, err := w.findGone(ctx); err != nil {
		return 0, fmt.Errorf("%w: %w", errDrain, err)
	}
	for range drainRounds {
		n, err := w.writeAll(ctx, w.dirtyBlocks())
		written += n
		if err == nil {
			err = w.SyncCold(ctx)
		}
		var gone []*residency.Block
		if err == nil {
			gone, err = w.findGone(ctx)
		}
		if err != nil {
			return written, fmt.Errorf("%w: %w", errDrain, err)
		}
		if len(gone) == 0 {
			return written, nil
		}
		written = max(written-len(gone), 0)
	}
	return written, fmt.Errorf("%w: %w", errDrain, errGone)
}

// drainRounds is how often a drain writes what somebody removes meanwhile.
const drainRounds = 3

// writeAll writes blocks that are dirty to the cold tier, and returns how many. The
// caller holds the token to write.
func (w *Writer) writeAll(ctx context.Context, dirty []*residency.Block) (written int, err error) {
	for len(dirty) > 0 {
		var views []*residency.View
		views, dirty = w.pinDirty(dirty)
		n, err := w.writeCold(ctx, views)
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

var errDrain = errors.New("cascade: drain is incomplete: what the cold tier refused stays in memory only")

// dirtyBlocks lists what a drain writes, in the order in which it was put, so
// that chains lie together.
func (w *Writer) dirtyBlocks() []*residency.Block {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	dirty := w.blocksLocked(func(b *residency.Block) bool { return b.CountedDirty })
	slices.SortFunc(dirty, func(x, y *residency.Block) int { return cmp.Compare(x.Names()[0].Seq(), y.Names()[0].Seq()) })
	return dirty
}

// pinDirty pins the first batch of blocks that are still dirty and returns the
// rest.
func (w *Writer) pinDirty(dirty []*residency.Block) (views []*residency.View, rest []*residency.Block) {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	var bytes int64
	for len(dirty) > 0 && len(views) < cleanBlocks && bytes < cleanBytes {
		b := dirty[0]
		dirty = dirty[1:]
		if !b.CountedDirty || b.Writing {
			continue
		}
		if v := w.state.PinFastestLocked(b); v != nil {
			b.Writing = true
			views = append(views, v.Background())
			bytes += v.Size()
		}
	}
	return views, dirty
}
