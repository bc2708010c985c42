package residency

import (
	"sync/atomic"
	"time"
)

// PendingQueue lists blocks without an id, oldest first. Guarded by State.Mu;
// blocks that got their id otherwise are skipped when popped.
type PendingQueue struct {
	queue []*Block
	Wake  chan struct{}
}

// Push adds a block.
func (q *PendingQueue) Push(b *Block) {
	q.queue = append(q.queue, b)
	Wake(q.Wake)
}

// Pop removes the oldest block that still needs an id, nil for none.
func (q *PendingQueue) Pop() *Block {
	for len(q.queue) > 0 {
		b := q.queue[0]
		q.queue[0] = nil
		q.queue = q.queue[1:]
		if b.CountedPending {
			return b
		}
	}
	q.queue = nil
	return nil
}

// QuietFor is how long no request must have come for the rank to be quiet: a client
// that waits for one answer before it asks again is busy in between too.
const QuietFor = 10 * time.Millisecond

// Activity counts what requests have under way.
type Activity struct {
	active atomic.Int64 // stages and views of requests
	ended  atomic.Int64 // when the last of them ended, Unix nanoseconds
	kept   atomic.Int64 // views that clients hold for long
}

// Begin records that a request's stage or view begins.
func (a *Activity) Begin() { a.active.Add(1) }

// End records that one ended.
func (a *Activity) End() {
	a.active.Add(-1)
	a.ended.Store(time.Now().UnixNano())
}

// Kept returns how many views clients hold for long.
func (a *Activity) Kept() int64 { return a.kept.Load() }

// Active returns how many stages and views requests have under way.
func (a *Activity) Active() int64 { return a.active.Load() }

// Quiet reports whether there has been no request for a while.
func (a *Activity) Quiet() bool {
	return a.active.Load() == 0 && time.Now().UnixNano()-a.ended.Load() > int64(QuietFor)
}
