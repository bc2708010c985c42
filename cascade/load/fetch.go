package load

import (
	"context"
	"errors"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Fetch brings one block up, from the cold tier or from another rank, for
// everyone who asked for it meanwhile. Fields but done are guarded by State.Mu.
type Fetch struct {
	waiters  int
	views    []*residency.View // one for each waiter, once done
	done     chan struct{}     // closed when views are there or it failed
	finished bool

	info block.Info // what is there; does not change

	block *residency.Block // of this rank's own cold tier; nil: from elsewhere
	Price eviction.Price   // what may be given up for its place in memory

	// From elsewhere:
	name     residency.NameID
	keep     bool // as a copy of this rank's own
	copies   []directory.Statement
	landed   *landed   // prefetched, and not asked for yet
	prefetch *Prefetch // the chain it was prefetched for, until it is asked for
	reserved int64     // its part of Loader.guarded.prefetchBytes
}

// maxReads bounds the blocks on their way from other ranks' memory at once. Those
// from the cold tier and from segments have a bound of their own: what hangs there
// does not hold up the other.
const maxReads = 64

// JoinColdLocked counts the caller among those who wait for b. If it is the
// first, the new fetch is added to fresh, and the caller must let StartLocked have
// it. nil when there is nothing to fetch. The caller holds the mutex and must
// then await the result.
func (ld *Loader) JoinColdLocked(b *residency.Block, fresh *[]*Fetch) *Fetch {
	if !b.Cold || ld.state.Mu.Closed {
		return nil
	}
	f := ld.guarded.raised[b]
	if f == nil {
		f = &Fetch{block: b, info: b.Info, done: make(chan struct{})}
		ld.guarded.raised[b], b.Loading = f, true
		b.Busy++
		ld.state.ColdLevel.SyncHoldLocked(b)
		*fresh = append(*fresh, f)
	}
	f.waiters++
	return f
}

// Await returns the caller's view of a joined fetch, or nil: a miss. ctx has an
// end.
func (ld *Loader) Await(ctx context.Context, f *Fetch) *residency.View {
	select {
	case <-f.done:
	case <-ctx.Done():
	}
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	if !f.finished {
		f.waiters-- // the fetch goes on for others, and for the next request
		return nil
	}
	if len(f.views) == 0 {
		return nil
	}
	v := f.views[len(f.views)-1]
	f.views = f.views[:len(f.views)-1]
	return v
}

// ended ends a fetch: its block is in a, or err is why not.
func (ld *Loader) ended(f *Fetch, a *readBuffer, err error) {
	if f.block == nil {
		ld.endRemote(f, a, err)
	} else {
		ld.endCold(f, a, err)
	}
}

// endCold ends a fetch from the cold tier.
func (ld *Loader) endCold(f *Fetch, a *readBuffer, err error) {
	if err != nil && a != nil {
		residency.AfterIO(err, a.abort)
	}
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	if err == nil {
		err = ld.publishColdLocked(f, a)
	}
	if err != nil {
		ld.coldFailedLocked(f.block, err)
	}
	f.finished = true
	delete(ld.guarded.raised, f.block)
	f.block.Loading = false
	ld.state.ColdLevel.SyncHoldLocked(f.block)
	f.block.Busy--
	ld.state.ForgetLocked(f.block)
	close(f.done)
	ld.state.WakeWaitersLocked()
}

// publishColdLocked makes a block that was read up resident, if it has a
// place in memory, and the views of those who wait.
func (ld *Loader) publishColdLocked(f *Fetch, a *readBuffer) error {
	b, m := f.block, ld.state.Last()
	if a.slot == nil {
		l := &landed{readBuffer: a, info: f.info, users: 1}
		for range f.waiters {
			f.views = append(f.views, ld.landedViewLocked(l, b))
		}
		l.leaveLocked()
		return nil
	}
	defer a.slot.Abort()
	fresh := !b.In(m.Index)
	if fresh {
		if err := a.slot.Commit(f.info, b.Records()); err != nil {
			return ld.state.RoomError(m, f.info.Size, err)
		}
		ld.state.EnterLocked(b, m)
		m.Stats.Promoted++
	}
	for range f.waiters {
		v, err := ld.state.PinInLocked(b, m, a.tier)
		if err != nil {
			return err
		}
		v.SetChecked(fresh)
		f.views = append(f.views, v)
	}
	return nil
}

// coldFailedLocked accounts for a read of the cold tier that failed. A block
// that the tier does not have any more is not kept on the books.
func (ld *Loader) coldFailedLocked(b *residency.Block, err error) {
	ld.state.NoteColdLocked(err)
	if !errors.Is(err, tiers.ErrCorrupt) && !errors.Is(err, tiers.ErrNotFound) {
		return
	}
	if errors.Is(err, tiers.ErrCorrupt) {
		ld.state.Count.Stats.Corrupt++
	}
	ld.state.ColdLevel.LeaveLocked(b, false)
	if !b.InAny() {
		ld.state.VanishLocked(b)
	}
}
