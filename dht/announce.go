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
	refused map[statementKey]*directory.Statement // by a home that does not take itself for one yet: wait again later
	drop    map[nameKey]uint64                    // puts stamped below are gone
	sent    time.Time                             // when take was called last
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

// Publish states to the homes of names what this rank has of them, and to those that
// were their homes as long as they are asked. It does not wait for them. It sets the
// owner in the list.
func (n *Node) Publish(list ...directory.Statement) {
	v, now := n.view.Load(), n.o.Now()
	parcels := map[fabric.Rank][]*directory.Statement{}
	for i := range list {
		s := &list[i]
		s.Owner, s.Incarnation = n.self, n.o.Incarnation
		for _, h := range v.everyHome(s.Name.Namespace, s.Name.Key, now) {
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
		stale = append(stale, n.dir.Apply(*s, n.o.Now())...)
	}
	n.deliver(stale)
}

func (n *Node) box(to fabric.Rank) *outbox {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.boxes[to]
	if b == nil {
		b = &outbox{wait: map[statementKey]*directory.Statement{}, refused: map[statementKey]*directory.Statement{}, drop: map[nameKey]uint64{}}
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
	old := b.wait[k]
	if old == nil {
		old = b.refused[k]
	}
	if old == nil || s.Newer(old) {
		own := *s // the rest of its list need not be kept
		if old != nil {
			own.Inherit(old)
		}
		b.wait[k] = &own
		delete(b.refused, k)
	}
}

// refuse sets statements aside, unless something newer waits.
func (b *outbox) refuse(list statements) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range list {
		own := list[i]
		k := keyOf(&own)
		if old := b.wait[k]; old == nil || own.Newer(old) {
			b.refused[k] = &own
			delete(b.wait, k)
		}
	}
}

// readmit has what was refused wait again, as far as its rank is still to have it.
func (b *outbox) readmit(isHome func(namespace, key string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, s := range b.refused {
		if isHome(k.namespace, k.key) {
			b.wait[k] = s
		}
	}
	clear(b.refused)
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

// waits reports whether there is something to send.
func (b *outbox) waits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.wait)+len(b.drop) > 0
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

// take returns the next parcel. An empty one means that nothing waits any more, but for
// what was refused if that is left.
func (b *outbox) take() (p parcel, left bool) {
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
			return p, true
		}
		p.statements = append(p.statements, *s)
		delete(b.wait, k)
	}
	bytes = 0 // they travel in another message
	for k, before := range b.drop {
		if bytes += 32 + len(k.namespace) + len(k.key); bytes > batchBytes && len(p.drops) > 0 {
			return p, true
		}
		p.drops = append(p.drops, staleMessage{k.namespace, k.key, before})
		delete(b.drop, k)
	}
	if p.empty() && len(b.refused) == 0 {
		b.sending = false
		close(b.idle)
		// A map keeps the room of its fullest time.
		b.wait, b.refused, b.drop = map[statementKey]*directory.Statement{}, map[statementKey]*directory.Statement{}, map[nameKey]uint64{}
	}
	return p, len(b.refused) > 0
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
	clear(b.refused)
	clear(b.drop)
}

// flush sends a rank what waits for it until nothing does.
func (n *Node) flush(to fabric.Rank, b *outbox) {
	delay := retryFirst
	for {
		if d := b.early(time.Now()); d > 0 {
			n.pause(d)
		}
		p, left := b.take()
		if p.empty() {
			if !left {
				return
			}
			delay = b.pause(n, delay)
			b.readmit(func(ns, key string) bool { return slices.Contains(n.view.Load().homes(ns, key), to) })
			continue
		}
		refused, ok := n.post(to, &p)
		switch {
		case ok:
			if b.refuse(refused); len(refused) == 0 && !left {
				delay = retryFirst
			}
		case !n.view.Load().alive(to):
			// What was taken has another home now, and is stated there. What has come
			// since may be for the next life of the rank.
		default:
			b.putBack(p)
			delay = n.pause(delay)
		}
		if n.work.Err() != nil {
			b.clear()
		}
	}
}

// pause is Node.pause that ends early when something waits.
func (b *outbox) pause(n *Node, delay time.Duration) time.Duration {
	for left := delay; left > 0 && !b.waits() && n.work.Err() == nil; left -= retryFirst {
		n.pause(retryFirst)
	}
	return min(2*delay, retryMost)
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

// post sends a parcel and takes out of it what has arrived: false if that is not all.
// Refused is what the rank takes itself for no home of.
func (n *Node) post(to fabric.Rank, p *parcel) (refused statements, ok bool) {
	if len(p.statements) > 0 {
		var err error
		if refused, err = n.announce(to, p.statements); !settled(err) {
			return nil, false
		}
		p.statements = nil
	}
	if len(p.drops) > 0 {
		if _, err := n.call(n.work, to, kindDrop, &p.drops); !settled(err) {
			p.statements = refused // to be sent with the rest
			return nil, false
		}
	}
	return refused, true
}

// settled reports whether sending it again would not help.
func settled(err error) bool {
	var refused *fabric.RemoteError
	return err == nil || errors.As(err, &refused)
}

// announce states a batch to a home and returns what that takes itself for no home of.
func (n *Node) announce(home fabric.Rank, batch statements) (refused statements, err error) {
	answer, err := n.call(n.work, home, kindAnnounce, &batch)
	if err == nil {
		var stale stales
		if err = decode(answer, &stale); err == nil {
			refused = refusedOf(batch, stale)
			n.stats.announced.Add(uint64(len(batch) - len(refused)))
			n.outdated(stale)
			return refused, nil
		}
	}
	if settled(err) || errors.Is(err, errBadMessage) {
		n.o.Log.Error("a home refuses statements", "home", home, "err", err)
		return nil, nil
	}
	return nil, err
}

// refusedOf are the statements of a batch that a rank did not take in, by its answer:
// of those no put is out of date.
func refusedOf(batch statements, answer stales) (refused statements) {
	names := map[nameKey]bool{}
	for _, a := range answer {
		if a.Before == 0 {
			names[nameKey{a.Namespace, a.Key}] = true
		}
	}
	for i := range batch {
		if s := &batch[i]; len(names) > 0 && names[nameKey{s.Name.Namespace, s.Name.Key}] {
			refused = append(refused, *s)
		}
	}
	return refused
}

func (n *Node) outdated(list stales) {
	for _, s := range list {
		if s.Before == 0 {
			continue
		}
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
