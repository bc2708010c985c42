package cascade

import (
	"context"
	"errors"

	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// fetch brings one block up, from the cold tier or from another rank, for
// everyone who asked for it meanwhile. Fields but done are guarded by the
// store's mutex.
type fetch struct {
	waiters  int
	views    []*View       // one for each waiter, once done
	done     chan struct{} // closed when views are there or it failed
	finished bool

	info block.Info // what is there; does not change

	block *blockState // of this rank's own cold tier; nil: from elsewhere
	price price       // what may be given up for its place in memory

	// From elsewhere:
	name     nameID
	keep     bool // as a copy of this rank's own
	copies   []directory.Statement
	landed   *landed   // finished ahead of its get
	prefetch *prefetch // the chain it was fetched ahead for, until it is asked for
	reserved int64     // its part of Store.aheadBytes
}

// maxReads bounds the blocks on their way from other ranks' memory at once. Those
// from the cold tier and from segments have a bound of their own: what hangs there
// does not hold up the other.
const maxReads = 64

// joinFetchLocked counts the caller among those who wait for b. If it is the
// first, the new fetch is added to fresh, and the caller must let bringUp have
// it. nil when there is nothing to fetch. The caller holds the mutex and must
// then await the result.
func (s *Store) joinFetchLocked(b *blockState, fresh *[]*fetch) *fetch {
	if !b.cold || s.mu.closed {
		return nil
	}
	if b.fetch == nil {
		b.fetch = &fetch{block: b, info: b.Info, done: make(chan struct{})}
		b.busy++
		s.syncColdHoldLocked(b)
		*fresh = append(*fresh, b.fetch)
	}
	b.fetch.waiters++
	return b.fetch
}

// untilFetched is ctx for as long as one fetch may take.
func (s *Store) untilFetched(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.limits.Load().FetchDeadline)
}

// await returns the caller's view of a joined fetch, or nil: a miss. ctx has an
// end.
func (s *Store) await(ctx context.Context, f *fetch) *View {
	select {
	case <-f.done:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
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

func takeSlot(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ended ends a fetch: its block is in a, or err is why not.
func (s *Store) ended(f *fetch, a *arrival, err error) {
	if f.block == nil {
		s.arrived(f, a, err)
	} else {
		s.fetched(f, a, err)
	}
}

// fetched ends a fetch from the cold tier.
func (s *Store) fetched(f *fetch, a *arrival, err error) {
	if err != nil && a != nil {
		afterIO(err, a.abort)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = s.publishFetchedLocked(f, a)
	}
	if err != nil {
		s.coldFailedLocked(f.block, err)
	}
	f.finished = true
	f.block.fetch = nil
	s.syncColdHoldLocked(f.block)
	f.block.busy--
	s.forgetLocked(f.block)
	close(f.done)
	s.wakeWaitersLocked()
}

// publishFetchedLocked makes a block that was read up resident, if it has a
// place in memory, and the views of those who wait.
func (s *Store) publishFetchedLocked(f *fetch, a *arrival) error {
	b, m := f.block, s.last()
	if a.slot == nil {
		l := &landed{arrival: a, info: f.info, users: 1}
		for range f.waiters {
			f.views = append(f.views, s.landedViewLocked(l, b))
		}
		l.leaveLocked()
		return nil
	}
	defer a.slot.Abort()
	fresh := !b.In(m.index)
	if fresh {
		if err := a.slot.Commit(f.info, b.Records()); err != nil {
			return s.roomError(m, f.info.Size, err)
		}
		s.enterLocked(b, m)
		m.stats.Promoted++
	}
	for range f.waiters {
		v, err := s.pinInLocked(b, m, a.tier)
		if err != nil {
			return err
		}
		v.checked = fresh
		f.views = append(f.views, v)
	}
	return nil
}

// lingering is an error of an operation that still uses its memory: in a hung
// file system, or on a fabric, it can outlast its deadline.
type lingering interface {
	error
	Done() <-chan struct{}
}

func lingers(err error) bool {
	var l lingering
	return errors.As(err, &l)
}

// afterIO runs free once an operation that failed no longer uses its memory.
func afterIO(err error, free func()) {
	var l lingering
	if !errors.As(err, &l) {
		free()
		return
	}
	go func() {
		<-l.Done()
		free()
	}()
}

// coldFailedLocked accounts for a read of the cold tier that failed. A block
// that the tier does not have any more is not kept on the books.
func (s *Store) coldFailedLocked(b *blockState, err error) {
	s.noteColdLocked(err)
	if !errors.Is(err, tiers.ErrCorrupt) && !errors.Is(err, tiers.ErrNotFound) {
		return
	}
	if errors.Is(err, tiers.ErrCorrupt) {
		s.mu.stats.Corrupt++
	}
	s.leaveColdLocked(b, false)
	if !b.InAny() {
		s.vanishLocked(b)
	}
}
