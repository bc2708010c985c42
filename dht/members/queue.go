package members

import (
	"sync"
	"time"

	"cascadekv/dht/fabric"
)

// crowded is how many events wait before older ones of the same rank are
// dropped.
const crowded = 4096

// gather is how long events gather: a rank that joins hears of all others at once, and
// what the reader does with a change takes longer.
const gather = 20 * time.Millisecond

// While changes go on, the reader rests so many times as long as it took for the last ones, and
// at most that long: as a job starts, each of many ranks that share CPUs hears of the others
// one by one, and makes a ring for what it has heard.
const (
	restTimes = 4
	mostRest  = time.Second
)

// queue hands events to a slow reader in their order. put never blocks. When
// the reader is far behind, it sees only the last event of each rank, and each
// that concerns its own.
type queue struct {
	self fabric.Rank

	mu     sync.Mutex
	wake   sync.Cond
	events []Event
	limit  int // how many events are thinned
	closed bool
	ending chan struct{} // closed likewise
}

func newQueue(self fabric.Rank) *queue {
	q := &queue{self: self, limit: crowded, ending: make(chan struct{})}
	q.wake.L = &q.mu
	return q
}

func (q *queue) put(events ...Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = append(q.events, events...)
	if len(q.events) > q.limit {
		q.thin()
		q.limit = max(crowded, 2*len(q.events))
	}
	q.wake.Signal()
}

// thin keeps the last event of each rank, at its place.
func (q *queue) thin() {
	final := map[fabric.Rank]int{}
	for i, e := range q.events {
		final[e.Member.Rank] = i
	}
	kept := q.events[:0]
	for i, e := range q.events {
		if final[e.Member.Rank] == i || e.Member.Rank == q.self {
			kept = append(kept, e)
		}
	}
	q.events = kept
}

// drain calls with the events that wait, until close and all before it are done.
func (q *queue) drain(call func([]Event)) {
	var next time.Time // when the reader has rested
	for {
		q.mu.Lock()
		for len(q.events) == 0 && !q.closed {
			q.wake.Wait()
		}
		if !q.closed {
			q.mu.Unlock()
			q.pause(max(gather, time.Until(next)))
			q.mu.Lock()
		}
		batch := q.events
		q.events = nil
		done := q.closed
		q.mu.Unlock()
		if len(batch) > 0 {
			began := time.Now()
			call(batch)
			took := time.Since(began)
			next = began.Add(took + min(restTimes*took, mostRest))
		}
		if done {
			return
		}
	}
}

// pause waits, but not for longer than until close.
func (q *queue) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-q.ending:
	}
}

// close ends drain after the events put so far.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.ending)
	}
	q.wake.Signal()
}
