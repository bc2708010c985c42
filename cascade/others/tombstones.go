package others

import (
	"context"
	"errors"
	"math"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/cascade/tombstones"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

const (
	// tombstoneStep is how many names the catalogue withdraws at once.
	tombstoneStep = 512

	// clearStep is how many names of a clearing it withdraws at once.
	clearStep = 1024

	// clearSync is after how many steps a clearing has the tier sync.
	clearSync = 32

	// tombstoneRetry is when to try again what the catalogue, or the tier under it,
	// refused.
	tombstoneRetry = 2 * time.Second
)

// InvalidateLocked invalidates what the catalogue has of puts of a name stamped
// below, and what is fetched of them.
func (x *Exchange) InvalidateLocked(id residency.NameID, below uint64) {
	x.state.Mu.AssertHeld()
	x.load.InvalidateFetchLocked(id, below)
	if x.Catalogue == nil {
		return
	}
	x.state.Mu.Names.SetNowhere(id.NS, id.Key)
	if x.guarded.tombstones.Add(id.NS, id.Key, below) {
		residency.Wake(x.flush)
	}
}

// InvalidateAllLocked invalidates what the catalogue has of puts, of a namespace or of all,
// stamped below before, and what is fetched of them. math.MaxUint64: of all puts so far.
func (x *Exchange) InvalidateAllLocked(ns string, all bool, before uint64) *tombstones.Clearing {
	x.state.Mu.AssertHeld()
	x.counted.Store(nil)
	c := tombstones.NewClearing(ns, all, min(before, x.state.TickLocked()))
	x.load.InvalidateFetchesLocked(ns, all, before)
	if x.Catalogue != nil {
		x.guarded.tombstones.AddClearing(c)
		residency.Wake(x.flush)
	}
	return c
}

// FlushTombstonesInBackground has the catalogue withdraw what was invalidated.
func (x *Exchange) FlushTombstonesInBackground(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.flush:
		case <-again:
		}
		again = nil
		if err := x.FlushTombstones(ctx); err != nil && ctx.Err() == nil {
			x.state.Mu.Lock()
			x.state.NoteColdLocked(err)
			x.state.Mu.Unlock()
			again = time.After(tombstoneRetry)
		}
	}
}

// FlushTombstones has the catalogue withdraw what was invalidated so far.
func (x *Exchange) FlushTombstones(ctx context.Context) (err error) {
	if x.Catalogue == nil {
		return nil
	}
	if err := x.flushing.Take(ctx); err != nil {
		return err
	}
	defer x.flushing.Give()
	for more := true; more && err == nil; {
		more, err = x.flushNames(ctx)
	}
	for err == nil {
		x.state.Mu.Lock()
		c := x.guarded.tombstones.Clearing()
		x.state.Mu.Unlock()
		if c == nil {
			break
		}
		err = x.flushClearing(ctx, c)
	}
	return err
}

// FlushLastTombstones is FlushTombstones before the tiers are closed. What the
// catalogue does not take is recorded all the same, so that it is invalid when the
// catalogue is begun anew.
func (x *Exchange) FlushLastTombstones(ctx context.Context) {
	err := x.FlushTombstones(ctx)
	if err == nil {
		return
	}
	x.state.Log.Warn("not all tombstones are flushed to the catalogue: they are recorded for the next one", "err", err)
	x.state.Mu.Lock()
	defer x.state.Mu.Unlock()
	for _, n := range x.guarded.tombstones.Queued(math.MaxInt) {
		n.Seq--
		x.state.NoteLinkLocked(x.state.Cold.Files.Unlink(block.ID{}, n))
	}
}

// flushNames withdraws some single names and reports whether there are more.
func (x *Exchange) flushNames(ctx context.Context) (more bool, err error) {
	x.state.Mu.Lock()
	withdrawn := x.guarded.tombstones.Queued(tombstoneStep)
	x.state.Mu.Unlock()
	if len(withdrawn) == 0 {
		return false, nil
	}
	there, err := x.Catalogue.Withdraw(ctx, withdrawn...)
	if err != nil {
		return false, err
	}
	x.state.Mu.Lock()
	var states []directory.Statement
	for i, n := range withdrawn {
		if there[i] {
			x.state.NoteLinkLocked(nil)
		}
		states = append(states, x.StateLocked(n.Namespace, n.Key)) // it may have been stated when a part was this rank's
	}
	more, peers := x.guarded.tombstones.Flushed(withdrawn, x.state.Now()), x.Peers
	x.state.Mu.Unlock()
	if peers != nil {
		x.AddCatalogued(states)
		peers.Publish(states...)
	}
	return more, nil
}

// flushClearing withdraws the names of a namespace, or all.
func (x *Exchange) flushClearing(ctx context.Context, c *tombstones.Clearing) error {
	var some []block.Name
	var failed error
	steps := 0
	walked := x.Catalogue.Names(false, func(f tiers.Found) bool {
		if c.Has(&f.Name) {
			some = append(some, block.Name{Namespace: f.Name.Namespace, Key: f.Name.Key, Seq: c.Below()})
		}
		if len(some) == clearStep {
			failed = x.withdrawCleared(ctx, c, some)
			some = some[:0]
			// The tier keeps a bounded number of withdrawals in mind.
			if steps++; steps%clearSync == 0 && failed == nil {
				failed = x.write.SyncInTurn(ctx)
			}
		}
		return failed == nil
	})
	if err := errors.Join(failed, walked); err != nil {
		return err
	}
	if err := x.withdrawCleared(ctx, c, some); err != nil {
		return err
	}
	x.state.Mu.Lock()
	defer x.state.Mu.Unlock()
	x.guarded.tombstones.Cleared(c, x.state.Now())
	return nil
}

// withdrawCleared withdraws some names of a clearing.
func (x *Exchange) withdrawCleared(ctx context.Context, c *tombstones.Clearing, some []block.Name) error {
	if len(some) == 0 {
		return nil
	}
	there, err := x.Catalogue.Withdraw(ctx, some...)
	if err != nil {
		return err
	}
	x.state.Mu.Lock()
	defer x.state.Mu.Unlock()
	x.state.NoteLinkLocked(nil)
	for _, was := range there {
		if was {
			c.Withdrawn++
		}
	}
	return nil
}
