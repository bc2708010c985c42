package uring

import "sync/atomic"

// submissions is the queue that we fill and the kernel empties. Its counters run
// freely and wrap; the mask makes places of them. It is guarded by its ring.
type submissions struct {
	head, tail *uint32 // head is the kernel's
	mask       uint32
	array      []uint32 // places of entries in order
	entries    []submission
}

// push adds s; false when the queue is full.
func (q *submissions) push(s submission) bool {
	tail := *q.tail // ours alone
	if tail-atomic.LoadUint32(q.head) > q.mask {
		return false
	}
	at := tail & q.mask
	q.entries[at] = s
	q.array[at] = at
	atomic.StoreUint32(q.tail, tail+1) // the entry is complete before the kernel sees it
	return true
}

// each calls fn with each entry that the kernel has not taken, which fn may
// change while the kernel takes none.
func (q *submissions) each(fn func(*submission)) {
	for at := atomic.LoadUint32(q.head); at != *q.tail; at++ {
		fn(&q.entries[q.array[at&q.mask]])
	}
}

// waiting is how many entries the kernel has not taken.
func (q *submissions) waiting() uint32 { return *q.tail - atomic.LoadUint32(q.head) }

// room is how many entries can be added.
func (q *submissions) room() uint32 { return q.mask + 1 - q.waiting() }

// completions is the queue that the kernel fills. One goroutine empties it.
type completions struct {
	head, tail *uint32 // tail is the kernel's
	mask       uint32
	entries    []completion
}

// pop takes the oldest completion; false when there is none.
func (q *completions) pop() (completion, bool) {
	head := *q.head // ours alone
	if head == atomic.LoadUint32(q.tail) {
		return completion{}, false
	}
	c := q.entries[head&q.mask]
	atomic.StoreUint32(q.head, head+1) // copied before the kernel may reuse the place
	return c, true
}
