package cascade

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"cascadekv/cascade/coldspace"
	"cascadekv/cascade/content"
	"cascadekv/cascade/eviction"
	"cascadekv/cascade/layouts"
	"cascadekv/cascade/load"
	"cascadekv/cascade/others"
	"cascadekv/cascade/recovery"
	"cascadekv/cascade/residency"
	"cascadekv/cascade/sharedindex"
	"cascadekv/cascade/writeback"
	"cascadekv/internal/loglimit"
)

// Store is one rank's cache. All methods are safe for concurrent use.
//
// It is the face of its parts, each a package: what this rank holds and where
// (residency), how room is made (eviction), what is on its way here (load) and to
// the cold tier (writeback), what the cold tier may keep (coldspace), what other
// ranks and jobs have (others), and what clients look up by themselves
// (sharedindex). All of them guard what they share with one mutex, State.Mu, which
// is held for map and list operations only: never while bytes are copied, hashed,
// read or written, or lines are logged. Methods that need it end in Locked.
//
// Lock order: the tokens to flush and to write and the publisher's mutex before
// State.Mu; State.Mu before the locks of tiers, of holders and of the event log. In
// builds with the tag invariants package locks asserts that.
type Store struct {
	state     *residency.State
	evict     *eviction.Evictor
	nameRoom  *eviction.NameBudget
	write     *writeback.Writer
	others    *others.Exchange
	load      *load.Loader
	content   *content.Ledger
	space     *coldspace.Space
	index     *sharedindex.Index
	layouts   *layouts.Book
	here      Here
	claims    Claims
	limited   loglimit.Limiter // of lines that clients cause
	forOthers atomic.Int64     // bytes of buffers: see Local.read
	stop      context.CancelFunc
}

// Open takes over the tiers, recovers what earlier incarnations left in them
// and returns a Store that owns them. On error the tiers are closed.
func Open(ctx context.Context, o Options) (*Store, error) {
	s, err := newStore(o)
	if err == nil {
		err = recovery.New(s.state).Recover(s.claims.takeLocked)
	}
	if err != nil {
		for _, m := range o.Memory {
			err = errors.Join(err, m.Close())
		}
		if o.Cold != nil {
			err = errors.Join(err, o.Cold.Close())
		}
		return nil, err
	}
	s.layouts.Share(s.state.Namespaces())
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.state.Workers.Go(func() { s.write.FinalizeInBackground(work) })
	if every := cmp.Or(o.SweepEvery, time.Second); every > 0 {
		s.state.Workers.Go(func() { s.sweepInBackground(work, every) })
	}
	if s.state.Deep() != nil {
		s.state.Workers.Go(func() { s.evict.DemoteInBackground(work) })
	}
	if s.state.Cold != nil {
		s.space.LookSpilled()
		s.state.Workers.Go(func() { s.write.CleanInBackground(work) })
		s.state.Workers.Go(func() { s.write.GoneInBackground(work) })
		s.state.Workers.Go(func() { s.space.MergeInBackground(work) })
	}
	if has, _ := s.Catalogue(); has {
		s.state.Workers.Go(func() { s.others.FlushTombstonesInBackground(work) })
	}
	return s, nil
}

func newStore(o Options) (*Store, error) {
	s := &Store{}
	s.claims.store = s
	state, err := residency.New(o, watcher{s})
	if err != nil {
		return nil, err
	}
	s.state = state
	s.evict = eviction.New(state)
	s.evict.Identify = func(v *View) { s.write.FinalizeID(v) }
	s.nameRoom = eviction.NewNameBudget(state)
	s.write = writeback.New(state, s.evict, watcher{s})
	s.others = others.New(state, s.nameRoom, s.write, watcher{s})
	s.content = content.New(state, s.nameRoom, s.write, s.others)
	s.write.Share(s.content)
	s.here = Here{state, s.others}
	s.load = load.New(state, s.evict, s.nameRoom, s.others)
	s.space = coldspace.New(state, s.nameRoom, s.others, s.load, s.content)
	s.index = sharedindex.New(state, s.others)
	var recorders []layouts.Recorder
	for _, m := range o.Memory {
		recorders = append(recorders, m)
	}
	if o.Cold != nil {
		recorders = append(recorders, o.Cold)
	}
	s.layouts = layouts.New(state.Now, recorders...)
	s.SetLimits(o.Limits)
	return s, nil
}

// SetLimits replaces the limits; zero fields take their defaults.
func (s *Store) SetLimits(l Limits) {
	l = l.WithDefaults()
	s.state.Limits.Store(&l)
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	s.state.WakeCleanerLocked(false) // the cold tier may have to shrink
}

// Close drains dirty blocks to the cold tier until ctx ends, then closes the
// tiers. Views must be released first.
func (s *Store) Close(ctx context.Context) error {
	if s.shut(ctx) != nil {
		return nil // it was closed before
	}
	_, err := s.write.Drain(ctx)
	for _, m := range s.state.Mem {
		err = errors.Join(err, m.Memory.Close())
	}
	if s.state.Cold != nil {
		err = errors.Join(err, s.state.Cold.Files.Close())
	}
	return err
}

// shut ends all operations and workers; the tiers are still open. ErrClosed: it
// was done before.
func (s *Store) shut(ctx context.Context) error {
	s.state.Mu.Lock()
	if err := s.state.CheckOpenLocked(); err != nil {
		s.state.Mu.Unlock()
		return err
	}
	s.state.Mu.Closed = true
	s.index.CloseIndexLocked()
	s.load.SweepLandedLocked(s.state.Now(), true)
	s.state.WakeWaitersLocked()
	s.state.Mu.Unlock()
	s.others.Leave()
	s.content.Leave()
	s.stop()
	s.state.Workers.Wait()
	s.others.FlushLastTombstones(ctx)
	return nil
}
