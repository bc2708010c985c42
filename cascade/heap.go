package cascade

import (
	"container/heap"
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

func (h *expiryHeap) push(n *name) {
	heap.Push(h, expiry{at: n.entry.Expires, name: n, seq: n.entry.Seq})
}

// next removes and returns a name that expired by now, or nil.
func (h *expiryHeap) next(now time.Time) *name {
	for len(*h) > 0 && !now.Before((*h)[0].at) {
		e := heap.Pop(h).(expiry)
		if e.name.block != nil && e.name.entry.Seq == e.seq {
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
