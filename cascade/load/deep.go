package load

import (
	"context"
	"errors"
	"fmt"

	"cascadekv/cascade/residency"
	"cascadekv/internal/losslog"
	"cascadekv/tiers"
)

// What only the deep level has is read as what lies in files is, and, if it does not come from there, from files.

// inDeep reports whether the deep level has a block.
func inDeep(s *residency.State, b *residency.Block) bool {
	d := s.Deep()
	return d != nil && b.In(d.Index)
}

// errPaused: the level did not answer a moment ago.
var errPaused = fmt.Errorf("it is left alone, because it did not answer a moment ago: %w", tiers.ErrUnavailable)

// startDeepLocked starts those fetches whose blocks the deep level has, and returns the others. While that is
// left alone files are read instead, if they have the block.
func startDeepLocked(ld *Loader, fetches []*Fetch) (rest []*Fetch) {
	d := ld.state.Deep()
	if d == nil {
		return fetches
	}
	paused := d.NoReads.Lasts()
	var deep []*Fetch
	for _, f := range fetches {
		switch {
		case f.block == nil || f.deepTried || !f.block.In(d.Index) || paused && f.block.Cold:
			rest = append(rest, f)
		case paused:
			f.deep = true
			ld.endLocked(ended{f, nil, errPaused})
		default:
			f.deep, f.deepTried = true, true
			switch err := holdDeepLocked(ld, f); {
			case err == nil:
				deep = append(deep, f)
			case f.block.Cold:
				f.deep, rest = false, append(rest, f)
			default:
				ld.endLocked(ended{f, nil, err})
			}
		}
	}
	if len(deep) > 0 {
		ld.state.Workers.Add(1)
		go ld.runFetches(d, deep)
	}
	return rest
}

// untilRead bounds the reads of some fetches from a level. Where there are files half of the time is left for them.
func untilRead(ld *Loader, from *residency.Level) (context.Context, context.CancelFunc) {
	if from.Files == nil && ld.state.Cold != nil {
		return context.WithTimeout(context.Background(), ld.state.Limits.Load().FetchDeadline/2)
	}
	return ld.state.UntilFetched(context.Background())
}

// readOfDeep is readOf of a block in the deep level, which is held there until it is read.
func readOfDeep(ld *Loader, room *roomTime, f *Fetch) (tiers.Read, error) {
	v := f.held
	f.held = nil
	a, err := ld.allocate(room, f.info.Size, ld.admitted(f), f.price)
	if err != nil {
		v.Release()
		return tiers.Read{}, err
	}
	if a.slot == nil && endPrefetch(ld, f) {
		a.abort()
		v.Release()
		return tiers.Read{}, errNotKept
	}
	a.from = v.In()
	return tiers.Read{Pin: v.Pin(), Info: f.info, Dst: a.bytes, Over: a.slot != nil, Done: func(err error) {
		v.WithdrawIf(err)
		residency.AfterIO(err, v.Release)
		if err != nil {
			notDeep(ld, ended{f, a, err})
			return
		}
		ld.end(ended{f, a, nil})
	}}, nil
}

// holdDeepLocked pins the block of a fetch, which the deep level has, from then on: one that left while it waits for its
// read would be known, by a fetch, and have no bytes.
func holdDeepLocked(ld *Loader, f *Fetch) error {
	d := ld.state.Deep()
	v, err := ld.state.PinInLocked(f.block, d, d)
	if errors.Is(err, tiers.ErrNotFound) {
		residency.GoneLocked(ld.state, f.block, d, losslog.Gone)
	}
	if err == nil {
		f.held = v.Background()
	}
	return err
}

// notDeep ends a fetch that did not come from the deep level, or has it read from files.
func notDeep(ld *Loader, e ended) {
	if v := e.f.held; v != nil { // its read has not begun
		e.f.held = nil
		v.Release()
	}
	if e.a != nil {
		residency.AfterIO(e.err, e.a.abort)
		e.a = nil
	}
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	d := ld.state.Deep()
	if residency.Lingers(e.err) || errors.Is(e.err, context.DeadlineExceeded) {
		d.NoReads.Begin()
	}
	if !errors.Is(e.err, tiers.ErrCorrupt) { // which is counted
		ld.state.NoteLocked(d, e.err)
	}
	if !e.f.block.Cold || ld.state.Mu.Closed {
		ld.endLocked(e)
		ld.state.WakeWaitersLocked()
		return
	}
	e.f.deep = false
	if part := ld.startLocked([]*Fetch{e.f}); part != nil {
		ld.state.Workers.Go(func() {
			defer ld.state.Workers.Done()
			ld.runElsewhere(part)
		})
	}
}
