package events

import (
	"context"
	"sync/atomic"

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

// Log keeps the last events, numbered from 1, from when it is first asked for
// any. All methods are safe for concurrent use; Add waits for no reader, but for
// one copying events out.
type Log struct {
	on   atomic.Bool // nothing is added before
	kept int         // events at most

	mu struct {
		locks.Mutex
		ring  []Event       // event number n is at (n-1) % kept
		next  uint64        // number of the next event
		woken chan struct{} // closed by the next event, nil while nobody waits
	}
}

// New returns an empty log that keeps so many events and gives none a number
// below first.
func New(kept int, first uint64) *Log {
	l := &Log{kept: kept}
	l.mu.SetRank(locks.Events)
	// The ring begins with a number that has the first place in it.
	rounds := (max(first, 1) - 1 + uint64(kept) - 1) / uint64(kept)
	l.mu.next = rounds*uint64(kept) + 1
	return l
}

// Next returns the number that the next event gets.
func (l *Log) Next() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.next
}

// Add appends an event, if somebody ever asked for events.
func (l *Log) Add(e Event) {
	if !l.on.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.ring) < l.kept {
		l.mu.ring = append(l.mu.ring, e)
	} else {
		l.mu.ring[(l.mu.next-1)%uint64(l.kept)] = e
	}
	l.mu.next++
	if l.mu.woken != nil {
		close(l.mu.woken)
		l.mu.woken = nil
	}
}

// Since returns up to most events from number first on, where to go on, and how
// many of those that were wanted are forgotten. 0 is from now on. A number that
// no event can have yet is of an earlier log: that counts as one forgotten.
func (l *Log) Since(first uint64, most int) (next, lost uint64, events []Event) {
	l.on.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case first == 0:
		return l.mu.next, 0, nil
	case first > l.mu.next:
		return l.mu.next, 1, nil
	}
	if oldest := l.mu.next - uint64(len(l.mu.ring)); first < oldest {
		first, lost = oldest, oldest-first
	}
	n := min(uint64(max(most, 0)), l.mu.next-first)
	events = make([]Event, n)
	for i := range events {
		events[i] = l.mu.ring[(first+uint64(i)-1)%uint64(l.kept)]
	}
	return first + n, lost, events
}

// Wait is true once there is an event number first, and false when ctx ends
// before.
func (l *Log) Wait(ctx context.Context, first uint64) bool {
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
