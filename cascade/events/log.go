package events

import (
	"context"
	"sync/atomic"
	"time"

	"cascadekv/internal/locks"
)

// Kind is what happened to a name.
type Kind uint8

const (
	Stored  Kind = iota + 1 // it has become readable on this rank, or names another block now
	Removed                 // it is no longer readable on this rank
)

// String is the word for the kind: "stored", "removed".
func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	}
	return "unknown"
}

// Event is one change of what is readable on this rank.
type Event struct {
	Kind      Kind
	Namespace string
	Key       string
	Size      int64 // of the block, in bytes
}

// Limits bound what a Log keeps.
type Limits[E any] struct {
	Kept int // events

	// Most bounds the sum of Cost over the events kept, in Cost's unit. A nil Cost is no
	// bound. Cost is called with the log's lock held, and always returns the same for an event.
	Most int64
	Cost func(*E) int64

	// Idle is how long nobody may ask before the log is empty and off until somebody
	// asks; the next answer to who asked before has some lost. 0: it stays on.
	Idle time.Duration
}

// Log keeps the last events, numbered from 1, from when it is first asked for
// any. All methods are safe for concurrent use; Add waits for no reader, but for
// one copying events out.
type Log[E any] struct {
	on     atomic.Bool // nothing is added before
	limits Limits[E]

	mu struct {
		locks.Mutex
		ring  []E           // event number n is at (n-1) % Kept
		first uint64        // number of the oldest event kept; next: there is none
		next  uint64        // number of the next event
		cost  int64         // of the events kept
		asked time.Time     // when Since was called last
		woken chan struct{} // closed by the next event, nil while nobody waits
	}
}

// New returns an empty log that gives no event a number below first.
func New[E any](l Limits[E], first uint64) *Log[E] {
	log := &Log[E]{limits: l}
	log.mu.SetRank(locks.Events)
	// The ring begins with a number that has the first place in it.
	kept := uint64(l.Kept)
	log.mu.next = (max(first, 1)-1+kept-1)/kept*kept + 1
	log.mu.first = log.mu.next
	return log
}

// Next returns the number that the next event gets.
func (l *Log[E]) Next() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.next
}

// On reports whether Add appends anything.
func (l *Log[E]) On() bool { return l.on.Load() }

// Add appends an event, if somebody asks for events.
func (l *Log[E]) Add(e E) {
	if !l.on.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limits.Idle > 0 && time.Since(l.mu.asked) > l.limits.Idle {
		l.endLocked()
		return
	}
	if l.mu.next-l.mu.first == uint64(l.limits.Kept) {
		l.forgetLocked()
	}
	if at := l.at(l.mu.next); at < len(l.mu.ring) {
		l.mu.ring[at] = e
	} else {
		l.mu.ring = append(l.mu.ring, make([]E, at+1-len(l.mu.ring))...)
		l.mu.ring[at] = e
	}
	l.mu.next++
	if l.limits.Cost != nil {
		l.mu.cost += l.limits.Cost(&e)
		for l.mu.cost > l.limits.Most && l.mu.first < l.mu.next {
			l.forgetLocked()
		}
	}
	if l.mu.woken != nil {
		close(l.mu.woken)
		l.mu.woken = nil
	}
}

// at is the place of event number n in the ring.
func (l *Log[E]) at(n uint64) int { return int((n - 1) % uint64(l.limits.Kept)) }

// forgetLocked forgets the oldest event.
func (l *Log[E]) forgetLocked() {
	e, none := &l.mu.ring[l.at(l.mu.first)], *new(E)
	if l.limits.Cost != nil {
		l.mu.cost -= l.limits.Cost(e)
	}
	*e = none
	l.mu.first++
}

// endLocked empties the log and has it wait until somebody asks. The event that is not
// added takes a number, so that who asked before learns of a loss.
func (l *Log[E]) endLocked() {
	l.on.Store(false)
	l.mu.ring, l.mu.cost = nil, 0
	l.mu.next++
	l.mu.first = l.mu.next
}

// Since returns up to most events from number first on, where to go on, and how
// many of those that were wanted are forgotten. 0 is from now on. A number that
// no event can have yet is of an earlier log: that counts as one forgotten.
func (l *Log[E]) Since(first uint64, most int) (next, lost uint64, events []E) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.asked = time.Now()
	l.on.Store(true)
	switch {
	case first == 0:
		return l.mu.next, 0, nil
	case first > l.mu.next:
		return l.mu.next, 1, nil
	}
	if first < l.mu.first {
		first, lost = l.mu.first, l.mu.first-first
	}
	n := min(uint64(max(most, 0)), l.mu.next-first)
	events = make([]E, n)
	for i := range events {
		events[i] = l.mu.ring[l.at(first+uint64(i))]
	}
	return first + n, lost, events
}

// Wait is true once there is an event number first, and false when ctx ends
// before.
func (l *Log[E]) Wait(ctx context.Context, first uint64) bool {
	l.mu.Lock()
	if l.mu.next > first {
		l.mu.Unlock()
		return true
	}
	if l.mu.woken == nil {
		l.mu.woken = make(chan struct{})
	}
	woken := l.mu.woken
	l.mu.Unlock()
	select {
	case <-woken:
		return true
	case <-ctx.Done():
		return false
	}
}
