package eviction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/internal/fault"
	"cascadekv/tiers"
)

// errRefused: the deep level does not take a block. It is left alone for a while, unless the block is too large.
var errRefused = errors.New("the memory tier below does not take the block")

// refusedLocked returns why the deep level does not take b, a victim of m, which lies above it: it failed
// lately, or b is too large for it; or files have b, and the level's policy has no use for it or the level has enough
// to do: nobody waits for a copy that can be done without; or there is no budget to write it there.
func (e *Evictor) refusedLocked(b *residency.Block, m *residency.Level) policy.Loss {
	d := e.state.Deep()
	if d == nil || m != e.state.Host() || b.In(d.Index) {
		return policy.NoLoss
	}
	switch {
	case !e.state.DeepUpLocked(), d.TooLarge > 0 && b.Info.Size >= d.TooLarge,
		b.HasLowerCopy() && (e.state.Mu.Writes.Demoting >= demotedAtOnce || !d.AdmitsLocked(b)):
		return policy.Refused
	case d.MayWriteLocked() <= 0:
		return policy.OverBudget
	}
	return policy.NoLoss
}

// ToFilesLocked reports whether b goes to files when it must leave memory tier m.
func (e *Evictor) ToFilesLocked(b *residency.Block, m *residency.Level) bool {
	return m.Index >= e.state.LowestLocked().Index || e.refusedLocked(b, m) != policy.NoLoss || m.Policy.Demotion(e.state.MetaLocked(b)) == policy.ToCold
}

// copyDeep is copyTo the deep level, within its budget. errRefused: it does not take the block.
func (e *Evictor) copyDeep(ctx context.Context, v *residency.View, d *residency.Level, most Price) (copied bool, err error) {
	if !e.beginDeep(d, v.Size()) {
		return false, errRefused
	}
	copied, err = e.writeDeep(ctx, v, d, most)
	e.state.Mu.Lock()
	defer e.state.Mu.Unlock()
	e.state.Mu.Writes.Demoting--
	if !copied {
		d.Writes.Return(v.Size())
	}
	return copied, err
}

// beginDeep counts a block that is to be copied to the deep level, before it is: several are at a time. False: there is
// no budget for it.
func (e *Evictor) beginDeep(d *residency.Level, size int64) bool {
	e.state.Mu.Lock()
	defer e.state.Mu.Unlock()
	if d.MayWriteLocked() <= 0 {
		return false
	}
	d.Writes.Take(size)
	e.state.Mu.Writes.Demoting++
	return true
}

// writeDeep is copyTo the deep level, which may fail, or hang, as a disk does. It has part of the time that a put waits
// for room: then there is some left to go another way. Room has more of it where there are no files: all other ways are
// a loss there. errRefused: it does not take the block.
func (e *Evictor) writeDeep(ctx context.Context, v *residency.View, d *residency.Level, most Price) (copied bool, err error) {
	if e.Identify != nil {
		e.Identify(v)
		e.state.Mu.Lock()
		merged := len(v.Block().Names()) == 0
		e.state.Mu.Unlock()
		if merged {
			return false, nil
		}
	}
	all := e.state.Limits.Load().RoomDeadline
	part := all / 2
	if e.state.Cold == nil {
		part = all * 3 / 4
	}
	room, cancel := context.WithTimeout(ctx, part)
	slot, err := e.reserveDeep(room, d, v.Size(), most)
	late := room.Err() != nil && ctx.Err() == nil
	cancel()
	switch {
	case errors.Is(err, residency.ErrTooLarge):
		e.state.Mu.Lock()
		defer e.state.Mu.Unlock()
		if d.TooLarge == 0 || v.Size() < d.TooLarge {
			d.TooLarge = v.Size()
		}
		return false, fmt.Errorf("%w: %w", errRefused, err)
	case errors.Is(err, tiers.ErrShort) && most == Unheld:
		return false, err // whoever reads has memory of its own, and did not wait
	case errors.Is(err, tiers.ErrUnavailable), errors.Is(err, tiers.ErrShort), err != nil && late:
		return false, e.pause(d, err)
	case err != nil:
		return false, err
	}
	within, cancel := context.WithTimeout(ctx, all/2)
	defer cancel()
	copied, err = e.copyInto(within, v, d, slot)
	if err == nil || ctx.Err() != nil || errors.Is(err, tiers.ErrCorrupt) || errors.Is(err, residency.ErrClosed) {
		return copied, err
	}
	return false, e.pause(d, err)
}

// reserveDeep is Reserve of the deep level. Where that has too much under way a put waits: a disk that is slow is no
// disk that fails, and there may be nowhere else for the block.
func (e *Evictor) reserveDeep(ctx context.Context, d *residency.Level, size int64, most Price) (tiers.Slot, error) {
	for {
		slot, err := e.Reserve(ctx, d, size, most)
		if !errors.Is(err, tiers.ErrShort) || most == Unheld {
			return slot, err
		}
		e.state.Mu.Lock()
		if e.waitForChangeLocked(ctx) != nil { // unlocks
			return nil, err
		}
	}
}

// pause has the deep level be left alone with writes for a while, which failed for err. Of pauses that follow each
// other the first is logged.
func (e *Evictor) pause(d *residency.Level, err error) error {
	e.state.Mu.Lock()
	defer e.state.Mu.Unlock()
	if d.NoWrites.Begin() {
		way := "what leaves memory is dropped meanwhile"
		if e.state.Cold != nil {
			way = "what leaves memory goes to " + e.state.ColdName() + " meanwhile"
		}
		e.state.LogLocked(slog.LevelWarn, "the tier takes no blocks, and is left alone for some seconds at a time: "+way+"; see whether its disks are full, slow or broken",
			"tier", d.Stats.Name, "err", err)
	}
	d.Stats.Errors++
	e.state.WakeWaitersLocked()
	return fmt.Errorf("%w: %w", errRefused, err)
}

// Blocks are copied to the deep level ahead of need by so many at once, and until so many victims of the host
// level are there.
const (
	demotedAtOnce = 8
	demotedStep   = 32
)

// DemoteInBackground copies the coldest blocks of the host level to the deep one while the host level is
// fuller than Limits.CleanAbove, so that a put that needs room seldom waits for that.
func (e *Evictor) DemoteInBackground(ctx context.Context) {
	defer fault.Guard()()
	var budget <-chan time.Time // set while blocks wait for one
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.state.DemoterWake:
		case <-budget:
		}
		for ctx.Err() == nil && e.demoteSome(ctx) {
		}
		budget = e.untilBudget()
	}
}

// untilBudget returns when there is a budget for copies to the deep level that are due, nil if none are, or there is.
func (e *Evictor) untilBudget() <-chan time.Time {
	e.state.Mu.Lock()
	defer e.state.Mu.Unlock()
	return e.state.Deep().Writes.Due(residency.DemotesLocked(e.state))
}

// demoteSome copies some blocks, and reports whether to look again.
func (e *Evictor) demoteSome(ctx context.Context) bool {
	blocks := e.nextDemoted()
	if len(blocks) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, e.state.Limits.Load().RoomDeadline)
	defer cancel()
	errs := make([]error, len(blocks))
	var wait sync.WaitGroup
	places := make(chan struct{}, demotedAtOnce)
	for i, b := range blocks {
		places <- struct{}{}
		wait.Go(func() {
			defer fault.Guard()()
			defer func() { <-places }()
			errs[i] = e.Demote(ctx, b, e.state.Host(), e.state.Deep(), CopyOnly)
		})
	}
	wait.Wait()
	e.state.Mu.Lock()
	defer e.state.Mu.Unlock()
	e.state.WakeWaitersLocked()
	return errors.Join(errs...) == nil
}

// isFull reports whether a level has hardly any room: a copy ahead of need would cost the block that it gives up next,
// and might be that one itself.
func isFull(m *residency.Level) bool {
	capacity, used := m.Occupancy()
	return used > capacity-capacity/fullShare
}

// fullShare is which part of a level that is not full is free.
const fullShare = 32

// nextDemoted returns the next victims of the host level that are to be copied to the deep one, and counts those
// before them that leave at once.
func (e *Evictor) nextDemoted() (blocks []*residency.Block) {
	e.state.Mu.Lock()
	defer e.state.Mu.Unlock()
	if !residency.DemotesLocked(e.state) || e.state.Deep().MayWriteLocked() <= 0 || isFull(e.state.Deep()) {
		return nil
	}
	m := e.state.Host()
	var looked []*residency.Block
	e.state.Mu.Writes.Demoted = 0
	for len(looked) < residency.EnoughClean && len(blocks) < demotedStep {
		b := e.VictimLocked(m)
		if b == nil {
			break
		}
		if step, _ := e.decideLocked(b, m); step == policy.Copy {
			blocks = append(blocks, b)
		} else if len(blocks) == 0 && step == policy.Drop {
			e.state.Mu.Writes.Demoted++
		}
		e.state.HoldLocked(b, m.Index)
		looked = append(looked, b)
	}
	for _, b := range looked {
		e.state.ReleaseLocked(b, m.Index)
	}
	return blocks
}
