package cascade

import (
	"container/heap"
	"context"
	"time"
)

// lease is a promise that a name stays readable on this rank. Where there is a
// cold tier the block may leave memory, since it stays readable below; a lease
// then only keeps it from being dropped when the cold tier refuses it.
type lease struct {
	name  *name
	owner string
	until time.Time
	held  bool // counted as a hold on the block in the last memory tier
	index int  // in Store.leases
	place int  // in Store.heldLeases while held
	nth   int  // in name.leases

	before, after *lease // of the owner; before is nil for the first
}

const (
	// maxOwners bounds the leases of one name. Owners beyond it share one, which
	// has no owner and ends by time only: a client looks through all of them.
	maxOwners = 64

	// sweepStep bounds the names and leases that end in one go with the mutex
	// held.
	sweepStep = 256
)

// Lease promises owner that a visible name stays readable on this rank for d,
// within the lease budget; false when there is no such name. A longer lease of
// the same owner replaces a shorter one. A block that only other ranks have is
// fetched instead, and waits here for its get as long as all that is fetched
// ahead.
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
	s.leaseLocked(n, owner, d)
	return true
}

func (s *Store) leaseLocked(n *name, owner string, d time.Duration) {
	if d <= 0 {
		return
	}
	until := s.now().Add(d)
	if s.prolongLocked(n, owner, until) {
		return
	}
	if len(n.leases) >= maxOwners {
		if owner = ""; s.prolongLocked(n, owner, until) {
			return
		}
	}
	l := &lease{name: n, owner: owner, until: until, nth: len(n.leases)}
	n.leases = append(n.leases, l)
	n.block.leases++
	heap.Push(&s.mu.leases, l)
	if l.after = s.mu.owned[owner]; l.after != nil {
		l.after.before = l
	}
	s.mu.owned[owner] = l
	s.holdLeaseLocked(l)
	s.syncColdHoldLocked(n.block)
}

// prolongLocked makes the lease that owner has of n end no earlier; false when
// there is none.
func (s *Store) prolongLocked(n *name, owner string, until time.Time) bool {
	for _, l := range n.leases {
		if l.owner != owner {
			continue
		}
		if until.After(l.until) {
			l.until = until
			heap.Fix(&s.mu.leases, l.index)
			if l.held {
				heap.Fix(&s.mu.heldLeases, l.place)
			}
		}
		return true
	}
	return false
}

// holdLeaseLocked keeps the lease's block in the last memory tier, if that is
// the only way to keep it. Leases beyond the budget end early, first to end
// first.
func (s *Store) holdLeaseLocked(l *lease) {
	m := s.last()
	b := l.name.block
	if l.held || s.coldUpLocked() || b == nil || !b.at[m.index].present {
		return
	}
	budget := int64(float64(m.tier.Usage().Capacity) * s.limits.Load().LeaseShare)
	for s.mu.leased+b.info.Size > budget {
		if len(s.mu.heldLeases) == 0 {
			return
		}
		s.endLeaseLocked(s.mu.heldLeases[0])
	}
	l.held = true
	heap.Push(&s.mu.heldLeases, l)
	s.mu.leased += b.info.Size
	s.holdLocked(b, m.index)
}

// holdLeasesOfLocked is holdLease for all leases of a name. One of them may end
// another for the budget.
func (s *Store) holdLeasesOfLocked(n *name) {
	for i := 0; i < len(n.leases); i++ {
		s.holdLeaseLocked(n.leases[i])
	}
}

func (s *Store) unholdLeaseLocked(l *lease) {
	if l.held {
		l.held = false
		heap.Remove(&s.mu.heldLeases, l.place)
		s.mu.leased -= l.name.block.info.Size
		s.releaseLocked(l.name.block, s.last().index)
	}
}

func (s *Store) endLeaseLocked(l *lease) {
	s.unholdLeaseLocked(l)
	heap.Remove(&s.mu.leases, l.index)
	all := l.name.leases
	last := all[len(all)-1]
	all[l.nth], last.nth = last, l.nth
	all[len(all)-1] = nil
	l.name.leases = all[:len(all)-1]
	s.disownLocked(l)
	l.name.block.leases--
	s.syncColdHoldLocked(l.name.block)
}

// disownLocked takes a lease out of its owner's.
func (s *Store) disownLocked(l *lease) {
	if l.after != nil {
		l.after.before = l.before
	}
	switch {
	case l.before != nil:
		l.before.after = l.after
	case l.after != nil:
		s.mu.owned[l.owner] = l.after
	default:
		delete(s.mu.owned, l.owner)
	}
}

func (s *Store) endLeasesLocked(n *name) {
	for len(n.leases) > 0 {
		s.endLeaseLocked(n.leases[len(n.leases)-1])
	}
}

// Unlease gives back every lease of owner.
func (s *Store) Unlease(owner string) {
	for more := true; more; {
		s.mu.Lock()
		for n := 0; n < sweepStep && s.mu.owned[owner] != nil; n++ {
			s.endLeaseLocked(s.mu.owned[owner])
		}
		more = s.mu.owned[owner] != nil
		s.wakeWaitersLocked()
		s.mu.Unlock()
	}
}

// Sweep forgets expired names and ended leases, and retries what was pinned.
// The owner calls it about once a second.
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
		if len(s.mu.leases) > 0 && !now.Before(s.mu.leases[0].until) {
			s.endLeaseLocked(s.mu.leases[0])
			continue
		}
		n := s.mu.expiries.next(now)
		if n == nil {
			return false
		}
		s.unbindLocked(n)
	}
	return true
}
