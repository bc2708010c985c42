package writeback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/fault"
	"cascadekv/tiers"
)

const (
	// cleanBytes and cleanBlocks bound one write to the cold tier: enough to
	// make one fsync and one seek cheap, little enough that a put that waits
	// for room does not wait long.
	cleanBytes  = 32 << 20
	cleanBlocks = 2048

	// cleanShare bounds a batch to one part in so many of what the tier
	// holds: the blocks of a batch are no victims while it is written.
	cleanShare = 8

	// coldDeadline is how long one write may take before it counts as refused.
	coldDeadline = 20 * time.Second
)

// CleanInBackground is the only writer to the cold tier besides Drain. It
// keeps some of the coldest blocks clean, so that a put that needs room seldom
// waits for the cold tier.
func (w *Writer) CleanInBackground(ctx context.Context) {
	defer fault.Guard()()
	var due, budget <-chan time.Time // set while names wait, and blocks for a budget
	for {
		w.space.Shrink()
		sync := false
		select {
		case <-ctx.Done():
			return
		case <-w.state.CleanerWake:
			sync = w.syncWanted()
		case <-due:
			sync = true
		case <-budget:
		}
		if sync {
			due = w.syncOrLater(ctx)
		}
		for !w.syncWanted() && w.cleanSome(ctx) {
			w.space.Shrink()
		}
		budget = w.untilBudget()
		if due == nil && w.namesWait() {
			due = time.After(syncEvery)
		}
	}
}

// untilBudget returns when there is a budget for writes that are due, nil if none are, or there is.
func (w *Writer) untilBudget() <-chan time.Time {
	w.state.Mu.Lock()
	crowded := residency.CrowdedLocked(w.state)
	w.state.Mu.Unlock()
	return w.state.Cold.Writes.Due(crowded)
}

// leaveAlone records that the cold tier refused a write and gives it time.
func (w *Writer) leaveAlone(err error) {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	w.state.Mu.Writes.ColdDown = w.state.Now().Add(residency.ColdRetry)
	w.state.NoteColdLocked(err)
}

// noteReadOnly logs when the cold tier begins to refuse blocks for want of room, and
// when it takes them again. It is called after each write, with the token to write
// held.
func (w *Writer) noteReadOnly() {
	health := w.state.Cold.Files.Stats().Health
	full := health != nil && health.ReadOnly
	if full == w.coldFull {
		return
	}
	w.coldFull = full
	if full {
		w.state.Log.Warn("the cold tier is read-only: no space or quota is left; free some, raise the quota, or remove what earlier jobs left; it is tried again by itself",
			"tier", w.state.ColdName())
	} else {
		w.state.Log.Info("the cold tier has room and takes blocks again", "tier", w.state.ColdName())
	}
}

// cleanSome writes one batch if one is wanted, and reports whether to look
// again.
func (w *Writer) cleanSome(ctx context.Context) bool {
	views := w.dirtyVictims()
	if len(views) == 0 {
		return false
	}
	var ours []*residency.View
	defer func() { w.endBatch(ours) }()
	ctx, cancel := context.WithTimeout(ctx, coldDeadline)
	defer cancel()
	ours, _, _ = w.divide(ctx, views, false)
	if len(ours) == 0 {
		return true
	}
	_, err := w.writeInTurn(ctx, ours)
	return err == nil
}

// endBatch ends the cleaner's batch, and counts what was written of it. A drain, which may write
// meanwhile, has none, and is bound by no budget: what is not written by its end is lost.
func (w *Writer) endBatch(written []*residency.View) {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	for _, v := range written {
		w.state.Cold.Writes.Take(w.state.Cold.Files.StoredSize(v.Block().Info))
	}
	w.state.Mu.Writes.Batch.InFlight = false
	w.state.WakeWaitersLocked()
}

// divide gives blocks their ids and leaves those to other ranks that they write: what is
// left is this rank's to write, and stays pinned. It returns also how many another rank
// keeps, and which wait for one. The caller does not hold the token to write: other
// ranks, which may be waiting for this one to sync, are asked.
func (w *Writer) divide(ctx context.Context, views []*residency.View, patient bool) (ours []*residency.View, relied int, wait []*residency.Block) {
	if w.shared == nil {
		return views, 0, nil
	}
	for _, v := range views {
		w.FinalizeID(v)
	}
	d := w.shared.Divide(ctx, views, patient)
	for _, v := range d.Wait {
		wait = append(wait, v.Block())
	}
	w.state.Mu.Lock()
	for _, v := range slices.Concat(d.Relied, d.Wait) {
		v.Block().Writing = false
	}
	w.state.WakeWaitersLocked()
	w.state.Mu.Unlock()
	for _, v := range slices.Concat(d.Relied, d.Wait) {
		v.Release()
	}
	return d.Ours, len(d.Relied), wait
}

// writeInTurn is writeCold for those without the token to write.
func (w *Writer) writeInTurn(ctx context.Context, views []*residency.View) (written int, err error) {
	if err := w.writing.Take(ctx); err != nil {
		w.state.Mu.Lock()
		w.endWritingLocked(views)
		w.state.Mu.Unlock()
		for _, v := range views {
			v.Release()
		}
		return 0, err
	}
	defer w.writing.Give()
	return w.writeCold(ctx, views)
}

// endWritingLocked ends what was begun for blocks, written or not.
func (w *Writer) endWritingLocked(views []*residency.View) {
	for _, v := range views {
		b := v.Block()
		if b.Writing = false; w.shared != nil {
			w.shared.UnclaimLocked(b)
		}
	}
}

// dirtyVictims pins the dirty blocks that the memory tiers' policies would
// give up next, if the lowest tier is crowded or somebody waits. While pinned
// they are no victims, so asking again yields the next.
func (w *Writer) dirtyVictims() []*residency.View {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	if !w.state.ColdUpLocked() || w.state.Cold.MayWriteLocked() <= 0 || !w.state.Mu.Writes.CleanRequested && !residency.CrowdedLocked(w.state) {
		return nil
	}
	w.state.Mu.Writes.CleanRequested = false
	var views []*residency.View
	for _, m := range w.state.Mem {
		picked, clean := w.pickDirtyLocked(m)
		views = append(views, picked...)
		if m == w.state.LowestLocked() {
			w.state.Mu.Writes.Batch.Clean = clean
		}
	}
	w.state.Mu.Writes.Batch.InFlight = len(views) > 0
	return views
}

// pickDirtyLocked pins m's next dirty victims, each with the dirty part of the
// chain above it: that leaves next, and lies beside it on disk. It counts the
// clean victims that come before the first dirty one. Only blocks that go to the cold
// tier from there are picked.
func (w *Writer) pickDirtyLocked(m *residency.Level) (views []*residency.View, clean int) {
	p := picker{store: w, mem: m, most: min(cleanBytes, m.Memory.Usage().Used/cleanShare, w.state.Cold.MayWriteLocked())}
	var skipped []*residency.Block
	waits, first := 0, 0
	for !p.full() && len(skipped)-waits < residency.EnoughClean && waits < mostWaits {
		b := w.evict.VictimLocked(m)
		if b == nil {
			break
		}
		if !p.wantsLocked(b) || residency.UnworthyLocked(w.state, b) != policy.NoLoss {
			w.state.HoldLocked(b, m.Index)
			if skipped = append(skipped, b); b.Dirty() && w.waitsLocked(b) {
				waits++
			}
			if len(p.views) == 0 && waits == 0 {
				first++
			}
			continue
		}
		if !p.addChainLocked(b) {
			break
		}
	}
	for _, b := range skipped {
		w.state.ReleaseLocked(b, m.Index)
	}
	return p.views, first
}

// mostWaits bounds the victims that wait for another rank and are passed over in search of
// one that does not.
const mostWaits = cleanBlocks

// waitsLocked reports whether a block is left to another rank for a moment.
func (w *Writer) waitsLocked(b *residency.Block) bool {
	return w.shared != nil && w.shared.WaitsLocked(b)
}

// picker collects one tier's share of a batch.
type picker struct {
	store *Writer
	mem   *residency.Level
	most  int64
	bytes int64
	views []*residency.View
}

func (p *picker) full() bool {
	return len(p.views) >= cleanBlocks || len(p.views) > 0 && p.bytes >= p.most
}

func (p *picker) wantsLocked(b *residency.Block) bool {
	if b.HasLowerCopy() || b.Writing || !b.In(p.mem.Index) || p.store.waitsLocked(b) {
		return false
	}
	return p.store.evict.ToFilesLocked(b, p.mem)
}

// addChainLocked picks b and its dirty ancestors; false when b can not be pinned.
func (p *picker) addChainLocked(b *residency.Block) bool {
	if !p.addLocked(b) {
		return false
	}
	for _, n := range b.Names() {
		for n = n.Parent(); n != nil && n.Block() != nil && p.wantsLocked(residency.BlockOf(n)) && !p.full(); n = n.Parent() {
			p.addLocked(residency.BlockOf(n))
		}
	}
	return true
}

func (p *picker) addLocked(b *residency.Block) bool {
	m := p.mem
	if host := p.store.state.Host(); m.Index > host.Index && b.In(host.Index) {
		m = host // where its bytes need not be read first
	}
	v, err := p.store.state.PinInLocked(b, m, m)
	if err != nil {
		p.store.state.NoteLocked(m, err)
		return false
	}
	b.Writing, b.Recorded = true, true
	p.views = append(p.views, v.Background())
	p.bytes += v.Size()
	return true
}

// writeCold finalizes, verifies and writes the viewed blocks as one batch,
// marks them clean and releases the views. It returns how many it wrote. The
// caller holds the token to write.
func (w *Writer) writeCold(ctx context.Context, views []*residency.View) (written int, err error) {
	var put error
	defer func() {
		// A write to a hung file system can outlast its deadline; the bytes
		// stay where they are until it is over.
		residency.AfterIO(put, func() {
			for _, v := range views {
				v.Release()
			}
		})
	}()
	for _, v := range views {
		w.FinalizeID(v)
	}
	items, owners, unread := w.coldItems(ctx, views)
	if len(items) > 0 {
		put = w.state.Cold.Files.Put(ctx, items...)
		w.noteReadOnly()
	}
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	defer w.state.WakeWaitersLocked()
	defer w.endWritingLocked(views)
	switch {
	case errors.Is(put, tiers.ErrExists):
		// Somebody's record of these bytes is there already: take them one by one.
		return w.writeEachLocked(ctx, items, owners), unread
	case put != nil:
		w.state.Mu.Writes.ColdDown = w.state.Now().Add(residency.ColdRetry)
		w.state.NoteColdLocked(put)
		return 0, put
	}
	if len(items) > 0 {
		w.space.AcceptedLocked()
	}
	for i, b := range owners {
		w.nowColdLocked(b, items[i].Names)
	}
	return len(items), unread
}

// errUnread: a block can not be read now where it lies, and so can not be written.
var errUnread = errors.New("blocks can not be read in memory that the process can not address: they are not written")

// coldItems describes the blocks that are still worth writing. unread matches errUnread where some could not be read.
func (w *Writer) coldItems(ctx context.Context, views []*residency.View) (items []tiers.Item, owners []*residency.Block, unread error) {
	w.sortByPut(views)
	within, cancel := w.state.UntilFetched(ctx)
	defer cancel()
	bad := sound(within, views)
	for _, err := range bad {
		if err != nil && !errors.Is(err, tiers.ErrCorrupt) {
			unread = fmt.Errorf("%w: %w", errUnread, err)
		}
	}
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	for i, v := range views {
		b := v.Block()
		if errors.Is(bad[i], tiers.ErrCorrupt) {
			v.WithdrawLocked()
		}
		if bad[i] != nil || b.HasLowerCopy() || len(b.Names()) == 0 || b.Info.ID.IsProvisional() {
			continue
		}
		items = append(items, tiers.Item{Info: b.Info, Names: b.Records(), Data: v.Bytes()})
		owners = append(owners, b)
	}
	return items, owners, unread
}

// readers is how many blocks are read together that the process can not address.
const readers = 8

// sound is View.Sound for several views: an error for each. Blocks that the process can not address wait for their
// tier, and are read together.
func sound(ctx context.Context, views []*residency.View) []error {
	errs := make([]error, len(views))
	turns := make(chan struct{}, readers)
	var reads sync.WaitGroup
	for i, v := range views {
		if v.Bytes() != nil {
			errs[i] = v.Sound(ctx)
			continue
		}
		turns <- struct{}{}
		reads.Go(func() {
			defer fault.Guard()()
			errs[i] = v.Sound(ctx)
			<-turns
		})
	}
	reads.Wait()
	return errs
}

// sortByPut orders views as their blocks were put, so that a chain lies in one
// piece on disk.
func (w *Writer) sortByPut(views []*residency.View) {
	w.state.Mu.Lock()
	defer w.state.Mu.Unlock()
	first := func(v *residency.View) uint64 {
		if len(v.Block().Names()) == 0 {
			return 0
		}
		return v.Block().Names()[0].Seq()
	}
	slices.SortFunc(views, func(x, y *residency.View) int { return cmp.Compare(first(x), first(y)) })
}

// writeEachLocked writes items one at a time, with the mutex released
// meanwhile.
func (w *Writer) writeEachLocked(ctx context.Context, items []tiers.Item, owners []*residency.Block) (written int) {
	for i, it := range items {
		w.state.Mu.Unlock()
		err := w.state.Cold.Files.Put(ctx, it)
		w.state.Mu.Lock()
		wrote := it.Names
		switch {
		case errors.Is(err, tiers.ErrExists):
			wrote = nil // its bytes are there, under whatever names
		case err != nil:
			w.state.NoteColdLocked(err)
			continue
		}
		w.nowColdLocked(owners[i], wrote)
		written++
	}
	return written
}

// nowColdLocked records that b is in the cold tier with the given names, and
// brings the names there up to date with what happened during the write.
func (w *Writer) nowColdLocked(b *residency.Block, wrote []block.Name) {
	w.state.Cold.StoredLocked(b)
	w.state.Last().Stats.Demoted++
	live := map[string]uint64{}
	for _, n := range b.Names() {
		live[n.Namespace()+"\x00"+n.Key()] = n.Seq()
	}
	for _, r := range wrote {
		k := r.Namespace + "\x00" + r.Key
		switch seq, ok := live[k]; {
		case !ok:
			// Whatever the name stands for now was written after r, and a withdrawal counts
			// before a record of the same tick: this withdraws r alone.
			w.state.NoteLinkLocked(w.state.Cold.Files.Unlink(b.Info.ID, r))
		case seq == r.Seq:
			delete(live, k)
		}
	}
	for _, n := range b.Names() {
		if _, missing := live[n.Namespace()+"\x00"+n.Key()]; missing {
			w.state.LinkColdLocked(b, n.Record())
		}
	}
	w.state.WakeWaitersLocked()
}
