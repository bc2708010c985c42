package dht

import (
	"maps"
	"slices"
	"sync"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
)

const (
	// batchBytes bounds an announcement, as estimated, below
	// fabric.MaxMessage with room for what msgpack adds.
	batchBytes = 512 << 10

	// A home that does not answer is tried again after retryFirst, then
	// later and later up to retryMost, for as long as it is in the ring.
	retryFirst = 50 * time.Millisecond
	retryMost  = time.Second
)

// outbox holds what one home has not been told yet: the newest statement about
// each name. While one batch is on its way the next gathers.
type outbox struct {
	mu      sync.Mutex
	wait    map[statementKey]directory.Statement
	sending bool
	idle    chan struct{} // closed when nothing waits and nothing is on its way
}

type statementKey struct {
	namespace, key string
	owner          fabric.Rank
}

// Publish tells the homes of names what this rank has of them. It does not
// wait for them.
func (n *Node) Publish(statements ...directory.Statement) {
	v := n.view.Load()
	for _, s := range statements {
		s.Owner, s.Incarnation = n.self, n.o.Incarnation
		n.tell(v.homes(s.Name.Namespace, s.Name.Key), s)
	}
}

// tell hands a statement to its homes.
func (n *Node) tell(homes []fabric.Rank, s directory.Statement) {
	for _, h := range homes {
		if h == n.self {
			n.deliver(n.dir.Apply(s))
			continue
		}
		n.box(h).put(n, h, s)
	}
}

func (n *Node) box(home fabric.Rank) *outbox {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.boxes[home]
	if b == nil {
		b = &outbox{wait: map[statementKey]directory.Statement{}}
		n.boxes[home] = b
	}
	return b
}

func (b *outbox) put(n *Node, home fabric.Rank, s directory.Statement) {
	k := statementKey{s.Name.Namespace, s.Name.Key, s.Owner}
	b.mu.Lock()
	defer b.mu.Unlock()
	if old, ok := b.wait[k]; ok && old.Version >= s.Version {
		return
	}
	b.wait[k] = s
	if !b.sending {
		b.sending = n.start(func() { n.flush(home, b) })
		b.idle = make(chan struct{})
	}
}

// take returns the next batch, empty when there is nothing to tell any more.
func (b *outbox) take() (batch []directory.Statement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	bytes := 0
	for k, s := range b.wait {
		bytes += 128 + len(s.Name.Namespace) + len(s.Name.Key) + len(s.Name.Parent)
		if s.Segment != nil {
			bytes += 32 + len(s.Segment.Path)
		}
		if len(batch) > 0 && bytes > batchBytes {
			break
		}
		batch = append(batch, s)
		delete(b.wait, k)
	}
	if len(batch) == 0 {
		b.sending = false
		close(b.idle)
	}
	return batch
}

// again puts back what was not delivered, unless there is newer to tell.
func (b *outbox) again(batch []directory.Statement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range batch {
		k := statementKey{s.Name.Namespace, s.Name.Key, s.Owner}
		if old, ok := b.wait[k]; !ok || old.Version < s.Version {
			b.wait[k] = s
		}
	}
}

func (b *outbox) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.wait)
}

// flush sends a home what waits for it until nothing does.
func (n *Node) flush(home fabric.Rank, b *outbox) {
	delay := retryFirst
	for batch := b.take(); len(batch) > 0; batch = b.take() {
		if err := n.announce(home, batch); err == nil {
			delay = retryFirst
			continue
		}
		if !n.view.Load().alive(home) {
			b.drop() // its names have another home now, and are told there
			continue
		}
		b.again(batch)
		select {
		case <-time.After(delay):
			delay = min(2*delay, retryMost)
		case <-n.work.Done():
			b.drop()
		}
	}
}

func (n *Node) announce(home fabric.Rank, batch []directory.Statement) error {
	answer, err := n.call(n.work, home, kindAnnounce, batch)
	if err != nil {
		return err
	}
	n.stats.announced.Add(uint64(len(batch)))
	var stale []staleMessage
	if err := decode(answer, &stale); err != nil {
		n.o.Log.Error("answer of a home", "home", home, "err", err)
		return nil // asking again would not help
	}
	n.outdated(stale)
	return nil
}

func (n *Node) outdated(stale []staleMessage) {
	for _, s := range stale {
		n.local.Outdated(s.Namespace, s.Key, s.Before)
	}
}

// deliver tells owners of copies that are out of date.
func (n *Node) deliver(stale []directory.Stale) {
	others := map[fabric.Rank][]staleMessage{}
	for _, s := range stale {
		others[s.Owner] = append(others[s.Owner], staleMessage{Namespace: s.Namespace, Key: s.Key, Before: s.Before})
	}
	for owner, list := range others {
		// In the background even for this rank: the store may hold its lock.
		n.start(func() {
			if owner == n.self {
				n.outdated(list)
				return
			}
			// An owner that does not hear of it states its copy again one day, and
			// is then told again.
			_, _ = n.call(n.work, owner, kindDrop, list)
		})
	}
}

// Settled waits until every home has been told all that this node was given
// before; false when ctx ended first. For tests and for orderly ends.
func (n *Node) Settled(done <-chan struct{}) bool {
	n.mu.Lock()
	boxes := slices.Collect(maps.Values(n.boxes))
	n.mu.Unlock()
	for _, b := range boxes {
		b.mu.Lock()
		sending, idle := b.sending, b.idle
		b.mu.Unlock()
		if !sending {
			continue
		}
		select {
		case <-idle:
		case <-done:
			return false
		}
	}
	return true
}
