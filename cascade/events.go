package cascade

import (
	"context"
	"sync"
	"sync/atomic"
)

// EventKind says what happened to a name.
type EventKind uint8

const (
	Stored  EventKind = iota + 1 // it has become readable on this rank, or names another block now
	Removed                      // it is no longer readable on this rank
)

// String is the word for the kind: "stored", "removed".
func (k EventKind) String() string {
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
	Kind      EventKind
	Namespace string
	Key       string
	Size      int64 // of the block, in bytes
}

// eventsKept is how many events are remembered: 3 MiB of them.
const eventsKept = 1 << 16

// eventLog remembers the last events, numbered from 1, from when it is first
// asked for any. All methods are safe for concurrent use; add does not wait for
// readers, but for one copying events out.
type eventLog struct {
	on atomic.Bool // without mu held: nothing is added before

	mu    sync.Mutex
	kept  int           // events remembered at most
	ring  []Event       // event number n is at (n-1) % kept
	next  uint64        // number of the next event
	woken chan struct{} // closed by the next event, nil while nobody waits
}

func newEventLog(kept int) *eventLog { return &eventLog{kept: kept, next: 1} }

// add notes an event, if somebody ever asked for events.
func (l *eventLog) add(e Event) {
	if !l.on.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ring) < l.kept {
		l.ring = append(l.ring, e)
	} else {
		l.ring[(l.next-1)%uint64(l.kept)] = e
	}
	l.next++
	if l.woken != nil {
		close(l.woken)
		l.woken = nil
	}
}

// since returns up to most events from number first on, where to go on, and how
// many of those that were wanted are forgotten. 0 is from now on. A number that
// no event can have yet is of an earlier log: that counts as one forgotten.
func (l *eventLog) since(first uint64, most int) (next, lost uint64, events []Event) {
	l.on.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case first == 0:
		return l.next, 0, nil
	case first > l.next:
		return l.next, 1, nil
	}
	if oldest := l.next - uint64(len(l.ring)); first < oldest {
		first, lost = oldest, oldest-first
	}
	n := min(uint64(max(most, 0)), l.next-first)
	events = make([]Event, n)
	for i := range events {
		events[i] = l.ring[(first+uint64(i)-1)%uint64(l.kept)]
	}
	return first + n, lost, events
}

// wait is true once there is an event number first, and false when ctx ends
// before.
func (l *eventLog) wait(ctx context.Context, first uint64) bool {
	l.mu.Lock()
	if l.next > first {
		l.mu.Unlock()
		return true
	}
	if l.woken == nil {
		l.woken = make(chan struct{})
	}
	woken := l.woken
	l.mu.Unlock()
	select {
	case <-woken:
		return true
	case <-ctx.Done():
		return false
	}
}

// Events returns up to most events from number since on, the number to go on
// with, and how many that were wanted are forgotten. since 0 asks for none: next
// is where those from now on begin. Names that are bound to another have no
// events: they are readable as that one is. An expired name is removed by Sweep.
// Nothing is remembered before the first call.
func (s *Store) Events(since uint64, most int) (next, lost uint64, events []Event) {
	return s.events.since(since, most)
}

// AwaitEvent waits for an event after those that Events returned with next; it is
// false when ctx ends before.
func (s *Store) AwaitEvent(ctx context.Context, next uint64) bool { return s.events.wait(ctx, next) }

// logStoredLocked notes that n became readable with the block it names. The
// caller holds the store's mutex, so that events come in the order of what
// happened.
func (s *Store) logStoredLocked(n *name) {
	if !n.entry.Bound {
		s.events.add(Event{Kind: Stored, Namespace: n.entry.Namespace, Key: n.entry.Key, Size: n.block.info.Size})
	}
}

// logRemovedLocked notes that n, which named b, is no longer readable;
// likewise.
func (s *Store) logRemovedLocked(n *name, b *blockState) {
	if !n.entry.Bound {
		s.events.add(Event{Kind: Removed, Namespace: n.entry.Namespace, Key: n.entry.Key, Size: b.info.Size})
	}
}
