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
// fetched instead, and waits here for its get as long as all that is prefetched.
//
// Where there is a cold tier the block may leave memory, since it stays readable
// below; a lease then only keeps it from being dropped when the cold tier refuses
// it.
func (s *Store) Lease(ctx context.Context, ns, key, owner string, d time.Duration) bool {
	found := s.Renew(ns, key, owner, d) || s.others.Peers != nil && s.probe(ctx, ns, []string{key}).Hits == 1
	s.state.Count.Lookup(ns, found)
	return found
}

// Renew is Lease for a name that was just served: a block that came from
// another rank is not fetched for it once more.
func (s *Store) Renew(ns, key, owner string, d time.Duration) bool {
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	n := s.state.LookupLocked(ns, key)
	if n == nil {
		return false
	}
	if d > 0 {
		l := s.state.Mu.Names.Lease(n, owner, s.state.Now().Add(d))
		s.state.ApplyLocked()
		if l != nil && !s.state.ColdUpLocked() {
			s.state.Mu.Names.HoldLease(l, s.state.LeaseBudget())
			s.state.ApplyLocked()
		}
	}
	return true
}

// Unlease gives back every lease of owner.
func (s *Store) Unlease(owner string) {
	for more := true; more; {
		s.state.Mu.Lock()
		more = s.state.Mu.Names.EndOwner(owner, sweepStep)
		s.state.ApplyLocked()
		s.state.WakeWaitersLocked()
		s.state.Mu.Unlock()
	}
}

// EachLease calls fn for every lease. fn must not call the store.
func (s *Store) EachLease(fn func(ns, key, owner string, until time.Time)) {
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	s.state.Mu.Names.EachLease(func(n *names.Name, owner string, until time.Time) { fn(n.Namespace(), n.Key(), owner, until) })
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
	for s.sweepEnded(now) {
	}
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	s.index.SweepIndexLocked()
	s.state.SweepJunkLocked()
	s.load.SweepLandedLocked(now, false)
	s.others.SweepLocked()
	s.state.WakeWaitersLocked()
}

// sweepEnded ends some leases and names that are due, and reports whether there are
// more.
func (s *Store) sweepEnded(now time.Time) (more bool) {
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	defer s.state.WakeWaitersLocked()
	for range sweepStep {
		if s.state.Mu.Names.EndLease(now) {
			s.state.ApplyLocked()
			continue
		}
		n := s.state.Mu.Names.NextExpired(now)
		if n == nil {
			return false
		}
		s.state.UnbindLocked(n)
	}
	return true
}
