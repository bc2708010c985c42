package cascade

import (
	"context"
	"errors"
	"fmt"

	"cascadekv/dht/directory"
	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// fetch brings one block up, from the cold tier or from another rank, for
// everyone who asked for it meanwhile. Fields but done are guarded by the
// store's mutex.
type fetch struct {
	block    *entity // from the cold tier: what is there
	waiters  int
	views    []*View       // one for each waiter, once done
	done     chan struct{} // closed when views are there or it failed
	finished bool

	// From another rank:
	name     nameID
	copies   []directory.Statement
	landed   *landed // finished ahead of its get
	ahead    *ahead  // the chain it was fetched ahead for, until it is asked for
	reserved int64   // its part of Store.aheadBytes
}

// maxFetches bounds the blocks on their way up from the cold tier at once, and
// maxReads those from other ranks: what hangs there does not hold up the other.
const (
	maxFetches = 32
	maxReads   = 64
)

// joinFetch counts the caller among those who wait for b, starting the fetch
// if it is the first; nil when there is nothing to fetch. The caller holds the
// mutex and must then await the result.
func (s *Store) joinFetch(b *entity) *fetch {
	if !b.cold || s.closed {
		return nil
	}
	if b.fetch == nil {
		b.fetch = &fetch{block: b, done: make(chan struct{})}
		b.busy++
		s.weigh(b)
		f := b.fetch
		s.workers.Go(func() { s.runFetch(f) })
	}
	b.fetch.waiters++
	return b.fetch
}

// await returns the caller's view of a joined fetch, or nil: a miss.
func (s *Store) await(ctx context.Context, f *fetch) *View {
	ctx, cancel := context.WithTimeout(ctx, s.limits.Load().FetchDeadline)
	defer cancel()
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

func (s *Store) runFetch(f *fetch) {
	// The fetch outlives the request that started it, up to its own deadline.
	ctx, cancel := context.WithTimeout(context.Background(), s.limits.Load().FetchDeadline)
	defer cancel()
	var up func() error
	err := takeSlot(ctx, s.fetching)
	if err == nil {
		up, err = s.readUp(ctx, f)
		<-s.fetching
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = up()
	}
	if err != nil {
		s.coldFailed(f.block, err)
	}
	f.finished = true
	f.block.fetch = nil
	s.weigh(f.block)
	f.block.busy--
	s.forget(f.block)
	close(f.done)
	s.announce()
}

func takeSlot(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readUp reads the block into the last memory tier, or into private memory if
// there is no room in it. What it returns publishes the result; the caller
// runs it with the mutex held.
func (s *Store) readUp(ctx context.Context, f *fetch) (func() error, error) {
	s.mu.Lock()
	info := f.block.info
	s.mu.Unlock()
	pin, err := s.cold.Pin(info.ID)
	if err != nil {
		return nil, err
	}
	defer pin.Release()
	m := s.last()
	slot, err := s.reserve(ctx, m, info.Size)
	if errors.Is(err, ErrNoRoom) || errors.Is(err, ErrTooLarge) {
		return s.readPrivate(ctx, f, pin, info)
	} else if err != nil {
		return nil, err
	}
	if err := pin.ReadInto(ctx, slot.Bytes()); err != nil {
		afterIO(err, slot.Abort)
		return nil, err
	}
	return func() error { return s.publishFetched(f, m, slot, info) }, nil
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

// publishFetched makes a block that was read up resident, and the views of
// those who wait. The caller holds the mutex.
func (s *Store) publishFetched(f *fetch, m *memTier, slot tiers.Slot, info block.Info) error {
	b := f.block
	defer slot.Abort()
	if !b.at[m.index].present {
		if err := slot.Commit(info, entryNames(b)); err != nil {
			return s.roomError(m, info.Size, err)
		}
		s.enter(b, m)
		m.stats.Promoted++
	}
	for range f.waiters {
		v, err := s.pinIn(b, m, s.coldStats.Name)
		if err != nil {
			return err
		}
		f.views = append(f.views, v)
	}
	return nil
}

// readPrivate serves a block without a place in any memory tier.
func (s *Store) readPrivate(ctx context.Context, f *fetch, pin tiers.Pin, info block.Info) (func() error, error) {
	if info.Size == 0 {
		return nil, fmt.Errorf("%w: an empty block needs no private memory", ErrNoRoom)
	}
	m, err := arena.MapAnonymous(info.Size)
	if err != nil {
		return nil, err
	}
	free := func() {
		if err := m.Close(); err != nil {
			s.log.Error("private memory", "err", err)
		}
	}
	if err := pin.ReadInto(ctx, m.Bytes()); err != nil {
		afterIO(err, free)
		return nil, err
	}
	return func() error {
		users := f.waiters
		if users == 0 {
			free()
		}
		for range f.waiters {
			f.block.busy++
			s.stats.Views++
			s.begin()
			f.views = append(f.views, &View{
				store: s, bytes: m.Bytes(), block: f.block, id: info.ID, tier: s.coldStats.Name,
				free: func() {
					s.mu.Lock()
					users--
					last := users == 0
					s.mu.Unlock()
					if last {
						free()
					}
				},
			})
		}
		return nil
	}, nil
}

// coldFailed accounts for a read of the cold tier that failed. A block that
// the tier does not have any more is not kept on the books. The caller holds
// the mutex.
func (s *Store) coldFailed(b *entity, err error) {
	s.noteCold(err)
	if !errors.Is(err, tiers.ErrCorrupt) && !errors.Is(err, tiers.ErrNotFound) {
		return
	}
	if errors.Is(err, tiers.ErrCorrupt) {
		s.stats.Corrupt++
	}
	s.leaveCold(b)
	if !b.inMemory() {
		s.vanish(b)
	}
}
