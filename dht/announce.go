package dht

import (
	"context"
	"errors"
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

	// batchStatements is how many an announcement mostly has at most.
	batchStatements = 512

	// announceGap is the least time from one announcement to a home to the next, in
	// which statements gather. One after a pause, or of many, goes at once.
	announceGap = 10 * time.Millisecond

	// A home that does not answer is tried again after retryFirst, then
	// later and later up to retryMost, for as long as it is in the ring.
	retryFirst = 50 * time.Millisecond
	retryMost  = time.Second
)

// outbox holds what one rank has not received yet: as a home, the newest
// statement about each name; as an owner, which of its copies are out of date.
// While one batch is on its way the next gathers.
type outbox struct {
	mu      sync.Mutex
	wait    map[statementKey]*directory.Statement
	drop    map[nameKey]uint64 // puts stamped below are gone
	sent    time.Time          // when take was called last
	sending bool
	idle    chan struct{} // closed when nothing waits and nothing is on its way
}

type nameKey struct{ namespace, key string }

type statementKey struct {
	nameKey
	owner fabric.Rank
}

func keyOf(s *directory.Statement) statementKey {
	return statementKey{nameKey{s.Name.Namespace, s.Name.Key}, s.Owner}
}

// parcel is what is sent at once.
type parcel struct {
	statements statements
	drops      stales
}

func (p *parcel) empty() bool { return len(p.statements)+len(p.drops) == 0 }

// Publish states to the homes of names what this rank has of them. It does not
// wait for them. It sets the owner in the list.
func (n *Node) Publish(list ...directory.Statement) {
	v := n.view.Load()
	parcels := map[fabric.Rank][]*directory.Statement{}
	for i := range list {
		s := &list[i]
		s.Owner, s.Incarnation = n.self, n.o.Incarnation
		for _, h := range v.homes(s.Name.Namespace, s.Name.Key) {
			parcels[h] = append(parcels[h], s)
		}
	}
	for h, p := range parcels {
		n.enqueue(h, p...)
	}
}

// enqueue hands statements, which do not change any more, to a home.
func (n *Node) enqueue(home fabric.Rank, list ...*directory.Statement) {
	if home != n.self {
		n.box(home).enqueue(n, home, list)
		return
	}
	var stale []directory.Stale
	for _, s := range list {
		stale = append(stale, n.dir.Apply(*s)...)
	}
	n.deliver(stale)
}

func (n *Node) box(to fabric.Rank) *outbox {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.boxes[to]
	if b == nil {
		b = &outbox{wait: map[statementKey]*directory.Statement{}, drop: map[nameKey]uint64{}}
		n.boxes[to] = b
	}
	return b
}

func (b *outbox) enqueue(n *Node, to fabric.Rank, list []*directory.Statement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range list {
		b.add(s)
	}
	b.send(n, to)
}

// outdate queues for an owner that copies of it are out of date.
func (b *outbox) outdate(n *Node, to fabric.Rank, list stales) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addDrops(list)
	b.send(n, to)
}

func (b *outbox) add(s *directory.Statement) {
	k := keyOf(s)
	if old := b.wait[k]; old == nil || s.Newer(old) {
		own := *s // the rest of its list need not be kept
		b.wait[k] = &own
	}
}

func (b *outbox) addDrops(list stales) {
	for _, d := range list {
		k := nameKey{d.Namespace, d.Key}
		b.drop[k] = max(b.drop[k], d.Before)
	}
}

// send starts to empty the box, if nobody does. The caller holds its mutex.
func (b *outbox) send(n *Node, to fabric.Rank) {
	if !b.sending {
		b.idle = make(chan struct{})
		b.sending = n.start(func() { n.flush(to, b) })
	}
}

// early is how long what waits should gather yet.
func (b *outbox) early(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.wait) + len(b.drop); n == 0 || n >= batchStatements {
		return 0
	}
	return announceGap - now.Sub(b.sent)
}

// take returns the next parcel, empty when nothing waits any more.
func (b *outbox) take() (p parcel) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = time.Now()
	bytes := 0
	p.statements = make(statements, 0, min(len(b.wait), batchStatements))
	for k, s := range b.wait {
		bytes += 160 + len(s.Name.Namespace) + len(s.Name.Key) + len(s.Name.Parent)
		if s.Segment != nil {
			bytes += 32 + len(s.Segment.Path)
		}
		if bytes > batchBytes && !p.empty() {
			return p
		}
		p.statements = append(p.statements, *s)
		delete(b.wait, k)
	}
	bytes = 0 // they travel in another message
	for k, before := range b.drop {
		if bytes += 32 + len(k.namespace) + len(k.key); bytes > batchBytes && len(p.drops) > 0 {
			return p
		}
		p.drops = append(p.drops, staleMessage{k.namespace, k.key, before})
		delete(b.drop, k)
	}
	if p.empty() {
		b.sending = false
		close(b.idle)
		// A map keeps the room of its fullest time.
		b.wait, b.drop = map[statementKey]*directory.Statement{}, map[nameKey]uint64{}
	}
	return p
}

// putBack puts back what was not delivered, unless something newer waits.
func (b *outbox) putBack(p parcel) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range p.statements {
		b.add(&p.statements[i])
	}
	b.addDrops(p.drops)
}

func (b *outbox) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.wait)
	clear(b.drop)
}

// flush sends a rank what waits for it until nothing does.
func (n *Node) flush(to fabric.Rank, b *outbox) {
	delay := retryFirst
	for {
		if d := b.early(time.Now()); d > 0 {
			n.pause(d)
		}
		p := b.take()
		if p.empty() {
			return
		}
		if n.post(to, &p) {
			delay = retryFirst
			continue
		}
		if !n.view.Load().alive(to) {
			b.clear() // its names have another home now, and are stated there
			continue
		}
		b.putBack(p)
		if delay = n.pause(delay); n.work.Err() != nil {
			b.clear()
		}
	}
}

// pause waits before something is tried again, or until the node is closed, and
// returns how long to wait the next time.
func (n *Node) pause(delay time.Duration) time.Duration {
	select {
	case <-time.After(delay):
	case <-n.work.Done():
	}
	return min(2*delay, retryMost)
}

// post sends a parcel and takes out of it what has arrived; true: all of it.
func (n *Node) post(to fabric.Rank, p *parcel) bool {
	if len(p.statements) > 0 {
		if !settled(n.announce(to, p.statements)) {
			return false
		}
		p.statements = nil
	}
	if len(p.drops) > 0 {
		_, err := n.call(n.work, to, kindDrop, &p.drops)
		return settled(err)
	}
	return true
}

// settled reports whether sending it again would not help.
func settled(err error) bool {
	var refused *fabric.RemoteError
	return err == nil || errors.As(err, &refused)
}

func (n *Node) announce(home fabric.Rank, batch statements) error {
	answer, err := n.call(n.work, home, kindAnnounce, &batch)
	if err == nil {
		n.stats.announced.Add(uint64(len(batch)))
		var stale stales
		if err = decode(answer, &stale); err == nil {
			n.outdated(stale)
			return nil
		}
	}
	if settled(err) || errors.Is(err, errBadMessage) {
		n.o.Log.Error("a home refuses statements", "home", home, "err", err)
		return nil
	}
	return err
}

func (n *Node) outdated(list stales) {
	for _, s := range list {
		n.local.Outdated(s.Namespace, s.Key, s.Before)
	}
}

// deliver sends to owners which copies are out of date, until they have received it
// or are gone.
func (n *Node) deliver(stale []directory.Stale) {
	if len(stale) == 0 {
		return
	}
	for owner, list := range byOwner(stale) {
		if owner == n.self {
			// In the background: whoever speaks may hold the store's lock.
			n.start(func() { n.outdated(list) })
		} else if n.view.Load().alive(owner) {
			n.box(owner).outdate(n, owner, list)
		}
	}
}

func byOwner(stale []directory.Stale) map[fabric.Rank]stales {
	owners := map[fabric.Rank]stales{}
	for _, s := range stale {
		owners[s.Owner] = append(owners[s.Owner], staleMessage{s.Namespace, s.Key, s.Before})
	}
	return owners
}

// Settled waits until every rank has received all that this node was given
// before; false when ctx ended first. For tests and for orderly ends.
func (n *Node) Settled(ctx context.Context) bool {
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
		case <-ctx.Done():
			return false
		}
	}
	return true
}
