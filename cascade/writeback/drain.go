package writeback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cascadekv/cascade/residency"
)

// FinalizePending gives every block in memory its id.
func (w *Writer) FinalizePending(ctx context.Context) error {
	for _, b := range w.withoutID() {
		if err := ctx.Err(); err != nil {
			return err
		}
		w.state.Mu.Lock()
		v := w.state.PinNearLocked(b) // what is deep has its id
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
	w.drains(1)
	defer w.drains(-1)
	if _, _, err := w.findGoneInTurn(ctx); err != nil {
		return 0, fmt.Errorf("%w: %w", errDrain, err)
	}
	var own, copies []*residency.Block // of the last round
	for gone, left := 0, 0; gone < drainRounds && left < leftRounds; {
		n, err := w.writeAll(ctx, w.dirtyBlocks())
		written += n
		if err == nil || errors.Is(err, errUnread) {
			err = cmp.Or(w.SyncInTurn(ctx), err)
		}
		if err == nil {
			own, copies, err = w.findGoneInTurn(ctx)
		}
		if err != nil {
			return written, fmt.Errorf("%w: %w", errDrain, err)
		}
		if len(own)+len(copies) == 0 {
			return written, nil
		}
		written = max(written-len(own), 0)
		if len(own) > 0 {
			gone++
		} else {
			left++
		}
	}
	err = errLeft
	if len(own) > 0 {
		err = errGone
	}
	return written, fmt.Errorf("%w: %w", errDrain, err)
}

// drains counts the drains that are under way.
func (w *Writer) drains(by int) {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	w.state.Mu.Writes.Drains += by
}

// drainRounds is how often a drain writes what is gone from the cold tier meanwhile, which somebody
// removed, and leftRounds how often what it has copies of and others gave up, or moved: in low
// space they do all the time, and each round takes as long as a few writes.
const drainRounds, leftRounds = 3, 20

const (
	// drainPatience is how long a drain waits for what other ranks write, without
	// any progress, before it writes that itself.
	drainPatience = 2 * time.Second

	// drainPoll is how long it waits between two looks.
	drainPoll = 20 * time.Millisecond
)

// mostUnread is how many batches of a drain may have blocks that can not be read: after that those that lie in the
// deep level alone are left there.
const mostUnread = 4

// writeAll has blocks that are dirty written to the cold tier, by this rank or another,
// and returns how many this rank wrote. What others write it waits for last. Where the error
// matches errUnread all others were written.
func (w *Writer) writeAll(ctx context.Context, dirty []*residency.Block) (written int, err error) {
	var later []*residency.Block
	var unread error
	unreadBatches := 0
	progress := w.state.Now()
	for len(dirty)+len(later) > 0 {
		if len(dirty) == 0 {
			select {
			case <-time.After(drainPoll):
			case <-ctx.Done():
				return written, ctx.Err()
			}
			dirty, later = later, nil
		}
		views, busy, rest := w.pinDirty(dirty, unreadBatches >= mostUnread)
		later, dirty = append(later, busy...), rest
		if len(views) == 0 {
			continue
		}
		patient := w.state.Now().Sub(progress) < drainPatience
		ours, relied, wait := w.divide(ctx, views, patient)
		later = append(later, wait...)
		n, err := 0, error(nil)
		if len(ours) > 0 {
			n, err = w.writeInTurn(ctx, ours)
		}
		if written += n; errors.Is(err, errUnread) {
			unread, unreadBatches = err, unreadBatches+1
		} else if err != nil {
			return written, err
		}
		if relied > 0 || n > 0 && patient { // what is written for want of progress is none of the others
			progress = w.state.Now()
		}
	}
	return written, unread
}

var errDrain = errors.New("cascade: drain is incomplete: what the cold tier refused stays in memory only")

// urgency orders what a drain writes, whose time may be short: shared prefixes first, then
// what was used since it was put.
func urgency(b *residency.Block) int {
	switch {
	case b.Prefix():
		return 0
	case b.Used:
		return 1
	}
	return 2
}

// dirtyBlocks lists what a drain writes: the most urgent first, and those alike in the order in
// which they were put, so that chains lie together.
func (w *Writer) dirtyBlocks() []*residency.Block {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	dirty := w.blocksLocked(func(b *residency.Block) bool { return b.CountedDirty })
	slices.SortFunc(dirty, func(x, y *residency.Block) int {
		return cmp.Or(urgency(x)-urgency(y), cmp.Compare(x.Names()[0].Seq(), y.Names()[0].Seq()))
	})
	return dirty
}

// pinDirty pins the first batch of blocks that are still dirty and returns those among
// them that the cleaner, or another drain, is about to write, and the rest. near: those that lie in the deep level
// alone are passed over.
func (w *Writer) pinDirty(dirty []*residency.Block, near bool) (views []*residency.View, busy, rest []*residency.Block) {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	var bytes int64
	for len(dirty) > 0 && len(views) < cleanBlocks && bytes < cleanBytes {
		b := dirty[0]
		dirty = dirty[1:]
		if !b.CountedDirty || near && !w.state.InNear(b) {
			continue
		}
		if b.Writing { // whether it will have been written is not known yet
			busy = append(busy, b)
			continue
		}
		if v := w.state.PinFastestLocked(b); v != nil {
			b.Writing, b.Recorded = true, true
			views = append(views, v.Background())
			bytes += v.Size()
		}
	}
	return views, busy, dirty
}
