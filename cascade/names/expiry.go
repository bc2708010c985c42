package names

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
	name *Name
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

// staleExpiries is how many stale entries there may be for no names.
const staleExpiries = 1024

// push adds a name that has a block, one of so many names. Where names change
// again and again most entries are stale: those are dropped then.
func (h *expiryHeap) push(n *Name, names int) {
	if len(*h) > 2*names+staleExpiries {
		*h = slices.DeleteFunc(*h, expiry.stale)
		heap.Init(h)
	}
	heap.Push(h, expiry{at: n.record.Expires, name: n, seq: n.record.Seq})
}

func (e expiry) stale() bool { return e.name.block == nil || e.name.record.Seq != e.seq }

// next removes and returns a name that expired by now, or nil.
func (h *expiryHeap) next(now time.Time) *Name {
	for len(*h) > 0 && !now.Before((*h)[0].at) {
		e := heap.Pop(h).(expiry)
		if !e.stale() {
			return e.name
		}
	}
	return nil
}
