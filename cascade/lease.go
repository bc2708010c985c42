package cascade

import (
	"container/heap"
	"context"
	"slices"
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
	index int  // in the heap
}

// Lease promises owner that a visible name stays readable on this rank for d,
// within the lease budget; false when there is no such name. A longer lease of
// the same owner replaces a shorter one. A block that only other ranks have is
// fetched instead, and waits here for its get as long as all that is fetched
// ahead.
func (s *Store) Lease(ctx context.Context, ns, key, owner string, d time.Duration) bool {
	found := s.Renew(ns, key, owner, d) || s.peers != nil && s.probe(ctx, ns, []string{key}).Hits == 1
	s.looked(ns, found)
	return found
}

// Renew is Lease for a name that was just served: a block that came from
// another rank is not fetched for it once more.
func (s *Store) Renew(ns, key, owner string, d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.lookup(ns, key)
	if n == nil {
		return false
	}
	s.lease(n, owner, d)
	return true
}

func (s *Store) lease(n *name, owner string, d time.Duration) {
	if d <= 0 {
		return
	}
	until := s.now().Add(d)
	for _, l := range n.leases {
		if l.owner == owner {
			if until.After(l.until) {
				l.until = until
				heap.Fix(&s.leases, l.index)
			}
			return
		}
	}
	l := &lease{name: n, owner: owner, until: until}
	n.leases = append(n.leases, l)
	n.block.leases++
	heap.Push(&s.leases, l)
	s.holdLease(l)
	s.weigh(n.block)
}

// holdLease keeps the lease's block in the last memory tier, if that is the
// only way to keep it. Leases beyond the budget end early, first to end first.
func (s *Store) holdLease(l *lease) {
	m := s.last()
	b := l.name.block
	if l.held || s.coldUp() || b == nil || !b.at[m.index].present {
		return
	}
	budget := int64(float64(m.tier.Usage().Capacity) * s.limits.Load().LeaseShare)
	for s.leased+b.info.Size > budget {
		first := s.firstHeld(l)
		if first == nil {
			return
		}
		s.endLease(first)
	}
	l.held = true
	s.leased += b.info.Size
	s.hold(b, m.index)
}

// firstHeld returns the held lease that ends first, other than l.
func (s *Store) firstHeld(l *lease) *lease {
	var first *lease
	for _, other := range s.leases {
		if other != l && other.held && (first == nil || other.until.Before(first.until)) {
			first = other
			if other.index == 0 {
				break
			}
		}
	}
	return first
}

func (s *Store) unholdLease(l *lease) {
	if l.held {
		l.held = false
		s.leased -= l.name.block.info.Size
		s.release(l.name.block, s.last().index)
	}
}

func (s *Store) endLease(l *lease) {
	s.unholdLease(l)
	heap.Remove(&s.leases, l.index)
	i := slices.Index(l.name.leases, l)
	l.name.leases = slices.Delete(l.name.leases, i, i+1)
	l.name.block.leases--
	s.weigh(l.name.block)
}

func (s *Store) endLeases(n *name) {
	for len(n.leases) > 0 {
		s.endLease(n.leases[len(n.leases)-1])
	}
}

// Unlease gives back every lease of owner.
func (s *Store) Unlease(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range slices.Clone(s.leases) {
		if l.owner == owner {
			s.endLease(l)
		}
	}
	s.announce()
}

// Sweep forgets expired names and ended leases, and retries what was pinned.
// The owner calls it about once a second.
func (s *Store) Sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for len(s.leases) > 0 && !now.Before(s.leases[0].until) {
		s.endLease(s.leases[0])
	}
	for n := s.expiries.next(now); n != nil; n = s.expiries.next(now) {
		s.unbind(n)
	}
	s.sweepIndex()
	s.sweepJunk()
	s.sweepLanded(now, false)
	s.sweepVoid(now)
	s.announce()
}
