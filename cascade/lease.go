package cascade

import (
	"context"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/internal/fault"
)

// sweepStep bounds the names and leases that end in one go with the mutex held.
const sweepStep = 256

// Lease promises owner that a visible name stays readable on this rank for d,
// within the lease budget; false when there is no such name. A longer lease of
// the same owner replaces a shorter one. A block that only other ranks have is
// fetched instead, and waits here for its get as long as all that is prefetched.
//
// Where there is a cold tier the block may leave memory, since it stays readable
// below; a lease then only keeps it from being dropped when the cold tier refuses
// it.
func (s *Store) Lease(ctx context.Context, ns, key, owner string, d time.Duration) bool {
	found := s.Leases().Renew(ns, key, owner, d) || s.others.AsksElsewhere() && lookUp(ctx, s, ns, []string{key}).prefetch(s, 1) == 1
	s.state.Count.Lookup(ns, found)
	return found
}

// sweepInBackground sweeps until ctx ends.
func (s *Store) sweepInBackground(ctx context.Context, every time.Duration) {
	defer fault.Guard()() // clients share the memory of their touches
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.Sweep()
		case <-ctx.Done():
			return
		}
	}
}

// Sweep forgets expired names, ended leases and prefetched blocks that nobody
// asked for in time, and retries what was pinned. The store does so once a second.
func (s *Store) Sweep() {
	now := s.state.Now()
	for s.here.sweepEnded(now) {
	}
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	s.index.SweepIndexLocked()
	s.state.SweepJunkLocked()
	s.load.SweepLandedLocked(now, false)
	s.state.Requests.Prefetched.SweepLocked(now)
	s.others.SweepLocked()
	s.content.SweepLocked()
	s.state.WakeWaitersLocked()
}

// Leases returns the leases of all owners.
func (s *Store) Leases() *residency.Leases { return &s.state.Leases }
