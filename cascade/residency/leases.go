package residency

import (
	"time"

	"cascadekv/cascade/names"
)

// Leases are promises that names stay readable on this rank (names.Lease), and what
// memory does for them.
type Leases struct{ state *State }

// leaseStep bounds the leases that end in one go with the mutex held.
const leaseStep = 256

// budget is how many bytes leases may hold in memory.
func (l *Leases) budget() int64 {
	return int64(float64(l.state.Host().Memory.Usage().Capacity) * l.state.Limits.Load().LeaseShare)
}

// fallsLocked reports whether a level below takes b when it must leave the slowest memory tier that has it.
func (l *Leases) fallsLocked(b *Block) bool {
	s := l.state
	return s.ColdUpLocked() || s.DeepUpLocked() && !b.In(s.Deep().Index)
}

// HoldOfLocked keeps a leased block in the slowest memory tier that has it, if that is the
// only way to keep it. Leases beyond the budget end early, first to end first.
func (l *Leases) HoldOfLocked(n *names.Name) {
	l.state.Mu.AssertHeld()
	if n.Leased() && !l.fallsLocked(BlockOf(n)) {
		l.state.Mu.Names.HoldLeases(n, l.budget())
		l.state.ApplyLocked()
	}
}

// HoldLocked is HoldOfLocked for all names of a block.
func (l *Leases) HoldLocked(b *Block) {
	if !b.Leased() {
		return
	}
	for _, n := range b.Names() {
		l.HoldOfLocked(n)
	}
}

// KeepLocked keeps a block that is leased, a victim that nothing slower takes, in the slowest memory
// tier that has it. Leases beyond the budget end early, as of HoldOfLocked.
func (l *Leases) KeepLocked(b *Block) {
	for _, n := range b.Names() {
		l.state.Mu.Names.HoldLeases(n, l.budget())
		l.state.ApplyLocked()
	}
}

// Renew promises owner that a visible name stays readable for d, within the budget
// of leases; false when there is no such name. A longer lease of the same owner
// replaces a shorter one. See VisibleLocked.
func (l *Leases) Renew(ns, key, owner string, d time.Duration) bool {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	n := VisibleLocked(l.state, ns, key)
	if n != nil && d > 0 {
		l.RenewLocked(n, owner, d)
	}
	return n != nil
}

// RenewLocked is Renew for a name that is visible.
func (l *Leases) RenewLocked(n *names.Name, owner string, d time.Duration) {
	l.state.Mu.AssertHeld()
	made := l.state.Mu.Names.Lease(n, owner, l.state.Now().Add(d))
	l.state.ApplyLocked()
	if made != nil && !l.fallsLocked(BlockOf(n)) {
		l.state.Mu.Names.HoldLease(made, l.budget())
		l.state.ApplyLocked()
	}
}

// End gives back every lease of owner.
func (l *Leases) End(owner string) {
	for more := true; more; {
		l.state.Mu.Lock()
		more = l.state.Mu.Names.EndOwner(owner, leaseStep)
		l.state.ApplyLocked()
		l.state.WakeWaitersLocked()
		l.state.Mu.Unlock()
	}
}

// Each calls fn for every lease. fn must not call the store.
func (l *Leases) Each(fn func(ns, key, owner string, until time.Time)) {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	l.state.Mu.Names.EachLease(func(n *names.Name, owner string, until time.Time) { fn(n.Namespace(), n.Key(), owner, until) })
}
