package cascade

import (
	"container/heap"
	"slices"
	"time"
)

// expiryHeap orders names by when they expire. Entries may be stale: a name
// that was changed since is recognised by its Seq.
type expiryHeap []expiry

type expiry struct {
	at   time.Time
	name *name
	seq  uint64
}

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h expiryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *expiryHeap) Push(x any)        { *h = append(*h, x.(expiry)) }
func (h *expiryHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = expiry{}
	*h = old[:len(old)-1]
	return x
}

// push adds a name that has a block, one of so many names. Where names change
// again and again most entries are stale: those are dropped then.
func (h *expiryHeap) push(n *name, names int) {
	if len(*h) > 2*names+staleExpiries {
		*h = slices.DeleteFunc(*h, expiry.stale)
		heap.Init(h)
	}
	heap.Push(h, expiry{at: n.entry.Expires, name: n, seq: n.entry.Seq})
}

// staleExpiries is how many stale entries there may be for no names.
const staleExpiries = 1024

func (e expiry) stale() bool { return e.name.block == nil || e.name.entry.Seq != e.seq }

// next removes and returns a name that expired by now, or nil.
func (h *expiryHeap) next(now time.Time) *name {
	for len(*h) > 0 && !now.Before((*h)[0].at) {
		e := heap.Pop(h).(expiry)
		if !e.stale() {
			return e.name
		}
	}
	return nil
}

// leaseHeap orders leases by when they end.
type leaseHeap []*lease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *leaseHeap) Push(x any) {
	l := x.(*lease)
	l.index = len(*h)
	*h = append(*h, l)
}
func (h *leaseHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return l
}

// heldHeap orders the held ones among them.
type heldHeap []*lease

func (h heldHeap) Len() int           { return len(h) }
func (h heldHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h heldHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}
func (h *heldHeap) Push(x any) {
	l := x.(*lease)
	l.place = len(*h)
	*h = append(*h, l)
}
func (h *heldHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return l
}
