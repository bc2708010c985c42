package cascade

import (
	"context"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/internal/fault"
)

// sweepStep bounds the names and leases that end in one go with the mutex held.
const sweepStep = 256

// Lease promises owner that a visible name stays readable on this rank for d,
// within the lease budget; false when there is no such name. A longer lease of
// the same owner replaces a shorter one. A block that only other ranks have is
// fetched instead, and waits here for its get as long as all that is fetched
// ahead.
//
// Where there is a cold tier the block may leave memory, since it stays readable
// below; a lease then only keeps it from being dropped when the cold tier refuses
// it.
func (s *Store) Lease(ctx context.Context, ns, key, owner string, d time.Duration) bool {
	found := s.Renew(ns, key, owner, d) || s.peers != nil && s.probe(ctx, ns, []string{key}).Hits == 1
	s.countLookup(ns, found)
	return found
}

// Renew is Lease for a name that was just served: a block that came from
// another rank is not fetched for it once more.
func (s *Store) Renew(ns, key, owner string, d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.lookupLocked(ns, key)
	if n == nil {
		return false
	}
	if d > 0 {
		l := s.mu.names.Lease(n, owner, s.now().Add(d))
		s.applyLocked()
		if l != nil && !s.coldUpLocked() {
			s.mu.names.HoldLease(l, s.leaseBudget())
			s.applyLocked()
		}
	}
	return true
}

// leaseBudget is how many bytes leases may hold in the last memory tier.
func (s *Store) leaseBudget() int64 {
	return int64(float64(s.last().tier.Usage().Capacity) * s.limits.Load().LeaseShare)
}

// holdLeasesOfLocked keeps a leased block in the last memory tier, if that is the
// only way to keep it. Leases beyond the budget end early, first to end first.
func (s *Store) holdLeasesOfLocked(n *names.Name) {
	if n.Leased() && !s.coldUpLocked() {
		s.mu.names.HoldLeases(n, s.leaseBudget())
		s.applyLocked()
	}
}

// holdLeasesLocked is holdLeasesOfLocked for all names of a block.
func (s *Store) holdLeasesLocked(b *blockState) {
	if !b.Leased() {
		return
	}
	for _, n := range b.Names() {
		s.holdLeasesOfLocked(n)
	}
}

// Unlease gives back every lease of owner.
func (s *Store) Unlease(owner string) {
	for more := true; more; {
		s.mu.Lock()
		more = s.mu.names.EndOwner(owner, sweepStep)
		s.applyLocked()
		s.wakeWaitersLocked()
		s.mu.Unlock()
	}
}

// EachLease calls fn for every lease. fn must not call the store.
func (s *Store) EachLease(fn func(ns, key, owner string, until time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.names.EachLease(func(n *names.Name, owner string, until time.Time) { fn(n.Namespace(), n.Key(), owner, until) })
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
	now := s.now()
	for s.sweepEnded(now) {
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepIndexLocked()
	s.sweepJunkLocked()
	s.sweepLandedLocked(now, false)
	s.sweepTombstonesLocked(now)
	s.wakeWaitersLocked()
}

// sweepEnded ends some leases and names that are due, and reports whether there are
// more.
func (s *Store) sweepEnded(now time.Time) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wakeWaitersLocked()
	for range sweepStep {
		if s.mu.names.EndLease(now) {
			s.applyLocked()
			continue
		}
		n := s.mu.names.NextExpired(now)
		if n == nil {
			return false
		}
		s.unbindLocked(n)
	}
	return true
}
