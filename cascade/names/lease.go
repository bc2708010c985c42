package names

import (
	"container/heap"
	"time"
)

// Lease is a promise that a name stays readable. A held lease is a hold on the
// name's block in the slowest level that has it, of those that leases hold in.
type Lease struct {
	name  *Name
	owner string
	until time.Time
	nth   int             // in name.leases
	at    [leaseHeaps]int // index in each heap; in that of held ones while held
	held  bool
	level uint8 // while held

	before, after *Lease // of the owner; before is nil for the first
}

// MaxOwners bounds the leases of one name. Owners beyond it share one, which has
// no owner and ends by time only: Lease looks through all of them.
const MaxOwners = 64

const (
	allLeases = iota
	heldLeases
	leaseHeaps
)

// leaseHeap orders leases by when they end.
type leaseHeap struct {
	leases []*Lease
	which  int // of Lease.at
}

func (h *leaseHeap) Len() int           { return len(h.leases) }
func (h *leaseHeap) Less(i, j int) bool { return h.leases[i].until.Before(h.leases[j].until) }
func (h *leaseHeap) Swap(i, j int) {
	l := h.leases
	l[i], l[j] = l[j], l[i]
	l[i].at[h.which], l[j].at[h.which] = i, j
}
func (h *leaseHeap) Push(x any) {
	l := x.(*Lease)
	l.at[h.which] = len(h.leases)
	h.leases = append(h.leases, l)
}
func (h *leaseHeap) Pop() any {
	end := len(h.leases) - 1
	l := h.leases[end]
	h.leases[end] = nil
	h.leases = h.leases[:end]
	return l
}

// Leases returns how many leases there are.
func (g *Graph) Leases() int { return len(g.leases.leases) }

// HeldBytes returns the bytes of blocks that leases hold, each as often as it is
// held.
func (g *Graph) HeldBytes() int64 { return g.held }

// EachLease calls fn for every lease, in no order.
func (g *Graph) EachLease(fn func(n *Name, owner string, until time.Time)) {
	for _, l := range g.leases.leases {
		fn(l.name, l.owner, l.until)
	}
}

// Lease promises owner that a name with a block stays readable until a time. It
// returns the new lease, nil when one that owner has already now ends no earlier.
func (g *Graph) Lease(n *Name, owner string, until time.Time) *Lease {
	if g.prolong(n, owner, until) {
		return nil
	}
	if len(n.leases) >= MaxOwners {
		if owner = ""; g.prolong(n, owner, until) {
			return nil
		}
	}
	l := &Lease{name: n, owner: owner, until: until, nth: len(n.leases)}
	n.leases = append(n.leases, l)
	n.block.leases++
	heap.Push(&g.leases, l)
	if l.after = g.owned[owner]; l.after != nil {
		l.after.before = l
	}
	g.owned[owner] = l
	g.add(Needed, nil, n.block)
	return l
}

// prolong makes the lease that owner has of n end no earlier; false when there is
// none.
func (g *Graph) prolong(n *Name, owner string, until time.Time) bool {
	for _, l := range n.leases {
		if l.owner != owner {
			continue
		}
		if until.After(l.until) {
			l.until = until
			heap.Fix(&g.leases, l.at[allLeases])
			if l.held {
				heap.Fix(&g.heldLeases, l.at[heldLeases])
			}
		}
		return true
	}
	return false
}

// HoldLease makes a lease hold its block in the slowest level that has it, if leases hold there.
// Where held leases exceed budget bytes those that end first are ended.
func (g *Graph) HoldLease(l *Lease, budget int64) {
	b := l.name.block
	if l.held || b == nil {
		return
	}
	level := Levels - 1
	for level >= g.first && !b.In(level) {
		level--
	}
	if level < g.first {
		return
	}
	for g.held+b.Info.Size > budget {
		if g.heldLeases.Len() == 0 {
			return
		}
		g.endLease(g.heldLeases.leases[0])
	}
	l.held, l.level = true, uint8(level)
	heap.Push(&g.heldLeases, l)
	g.held += b.Info.Size
	g.hold(b, level, 1)
}

// HoldLeases is HoldLease for all leases of a name. One of them may end another
// for the budget.
func (g *Graph) HoldLeases(n *Name, budget int64) {
	for i := 0; i < len(n.leases); i++ {
		g.HoldLease(n.leases[i], budget)
	}
}

func (g *Graph) unholdLeases(n *Name) {
	for _, l := range n.leases {
		g.unholdLease(l)
	}
}

func (g *Graph) unholdLease(l *Lease) {
	if l.held {
		l.held = false
		heap.Remove(&g.heldLeases, l.at[heldLeases])
		g.held -= l.name.block.Info.Size
		g.hold(l.name.block, int(l.level), -1)
	}
}

func (g *Graph) endLease(l *Lease) {
	g.unholdLease(l)
	heap.Remove(&g.leases, l.at[allLeases])
	all := l.name.leases
	last := all[len(all)-1]
	all[l.nth], last.nth = last, l.nth
	all[len(all)-1] = nil
	l.name.leases = all[:len(all)-1]
	g.disown(l)
	l.name.block.leases--
	g.add(Needed, nil, l.name.block)
}

// disown takes a lease out of its owner's.
func (g *Graph) disown(l *Lease) {
	if l.after != nil {
		l.after.before = l.before
	}
	switch {
	case l.before != nil:
		l.before.after = l.after
	case l.after != nil:
		g.owned[l.owner] = l.after
	default:
		delete(g.owned, l.owner)
	}
}

func (g *Graph) endLeases(n *Name) {
	for len(n.leases) > 0 {
		g.endLease(n.leases[len(n.leases)-1])
	}
}

// EndOwner ends up to most leases of an owner, and reports whether there are more.
func (g *Graph) EndOwner(owner string, most int) (more bool) {
	for range most {
		l := g.owned[owner]
		if l == nil {
			return false
		}
		g.endLease(l)
	}
	return g.owned[owner] != nil
}

// EndLease ends a lease that is due, and reports whether there was one.
func (g *Graph) EndLease(now time.Time) bool {
	if g.leases.Len() == 0 || now.Before(g.leases.leases[0].until) {
		return false
	}
	g.endLease(g.leases.leases[0])
	return true
}
