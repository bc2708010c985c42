package residency

import (
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

// Begin and End bracket a request's stage or view.
func (s *State) Begin() { s.Active.Add(1) }

// End records that one ended.
func (s *State) End() {
	s.Active.Add(-1)
	s.lastEnd.Store(time.Now().UnixNano())
}

// Quiet reports whether there has been no request for a while.
func (s *State) Quiet() bool {
	return s.Active.Load() == 0 && time.Now().UnixNano()-s.lastEnd.Load() > int64(QuietFor)
}
