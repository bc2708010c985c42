package cascade

import (
	"context"
	"math"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/fault"
)

// Peers are the other ranks of the job, as the store uses them. dht.Node
// implements it. Methods without a context do not wait for other ranks.
type Peers interface {
	// Publish tells what this rank has of some names now.
	Publish(...directory.Statement)

	// Settled waits until the homes that answer were told all that was published,
	// and is false when ctx ends first.
	Settled(ctx context.Context) bool

	// Locate tells where the blocks of keys lie on other ranks, in parallel to
	// keys: nil for those nobody is known to have.
	Locate(ctx context.Context, ns string, keys []string) [][]directory.Statement

	// Read copies a located block out of some rank's memory into dst. After an
	// error with a method Done, dst is not the caller's until that is closed.
	Read(ctx context.Context, copies []directory.Statement, dst []byte) error

	// Invalidate takes back what a statement says of copies: s has what is left.
	Invalidate(s directory.Statement)

	// Touch tells an owner which of its blocks were used here.
	Touch(owner fabric.Rank, ns string, keys []string)

	// Expire sets when a name ends, with the ranks that have it, and reports
	// whether there are any.
	Expire(ctx context.Context, ns, key string, at time.Time) (bool, error)

	// Delete withdraws a name put no later than stamp from all ranks, and Clear
	// a namespace, or all of them. They wait for the ranks that answer.
	Delete(ctx context.Context, ns, key string, stamp uint64) error
	Clear(ctx context.Context, ns string, all bool) error
}

// publishStep bounds the names described in one go with the mutex held.
const publishStep = 256

// Join makes the store one of many: what it holds is told to peers, and what
// it misses is looked for there. It is called at most once, before the
// first request. Peers must stay usable until the store is closed.
func (s *Store) Join(p Peers) {
	s.mu.Lock()
	s.peers = p
	s.setFinalLocked()
	s.mu.Unlock()
	work, stop := context.WithCancel(context.Background())
	s.leavePeers = stop
	s.workers.Go(func() { s.publishInBackground(work) })
	Local{s}.Names(func(string, string) bool { return true }, func(st directory.Statement) { p.Publish(st) })
}

// publishQueue lists names whose homes have not heard of their last change, each
// once. Guarded by the store's mutex, but for wake.
type publishQueue struct {
	names []*names.Name
	wake  chan struct{} // has the publisher look
}

func newPublishQueue() publishQueue { return publishQueue{wake: make(chan struct{}, 1)} }

func (q *publishQueue) add(n *names.Name) {
	if n.Queued {
		return
	}
	n.Queued = true
	q.names = append(q.names, n)
	if len(q.names) == 1 {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// take removes the first names of the queue, and calls fn with each.
func (q *publishQueue) take(most int, fn func(*names.Name)) {
	n := min(len(q.names), most)
	for i, one := range q.names[:n] {
		one.Queued, q.names[i] = false, nil
		fn(one)
	}
	if q.names = q.names[n:]; len(q.names) == 0 {
		q.names = nil
	}
}

// enqueuePublishLocked has what changed of a name published to its homes.
func (s *Store) enqueuePublishLocked(n *names.Name) {
	s.invalidateFetchLocked(nameID{n.Namespace(), n.Key()}, math.MaxUint64)
	if s.peers != nil {
		s.unpublished.add(n)
	}
}

// enqueuePublishAllLocked is say for all names of a block.
func (s *Store) enqueuePublishAllLocked(b *blockState) {
	for _, n := range b.Names() {
		s.enqueuePublishLocked(n)
	}
}

func (s *Store) publishInBackground(ctx context.Context) {
	defer fault.Guard()()
	for {
		select {
		case <-s.unpublished.wake:
		case <-ctx.Done():
			return
		}
		s.publish()
	}
}

// publish publishes what is unpublished.
func (s *Store) publish() {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	for batch := s.nextUnpublished(); len(batch) > 0; batch = s.nextUnpublished() {
		s.fillIn(batch)
		s.peers.Publish(batch...)
	}
}

// tellPatience bounds how long a drain waits for homes to be told.
const homesPatience = 2 * time.Second

// awaitHomes has the homes that answer know where everything lies now, so that
// this rank can be lost and its segments are still found.
func (s *Store) awaitHomes(ctx context.Context) {
	s.mu.Lock()
	alone := s.peers == nil
	s.mu.Unlock()
	if alone {
		return
	}
	s.publish()
	ctx, cancel := context.WithTimeout(ctx, homesPatience)
	defer cancel()
	s.peers.Settled(ctx)
}

// nextUnpublished describes names whose homes have not been told of their last
// change, as they are now.
func (s *Store) nextUnpublished() []directory.Statement {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := make([]directory.Statement, 0, min(len(s.unpublished.names), publishStep))
	s.unpublished.take(publishStep, func(n *names.Name) {
		batch = append(batch, s.stateLocked(n.Namespace(), n.Key()))
	})
	return batch
}

// stateLocked describes a name as it is now.
func (s *Store) stateLocked(ns, key string) directory.Statement {
	st := directory.Statement{Version: s.tickLocked()}
	st.Name.Namespace, st.Name.Key = ns, key
	n := s.mu.names.Get(ns, key)
	if n == nil || n.Block() == nil {
		return st
	}
	b := stateOf(n)
	st.Name, st.Info = n.Record(), b.Info
	st.Name.Seq = n.Put()
	for _, m := range s.mem {
		if !b.In(m.index) {
			continue
		}
		if at, err := m.tier.Place(b.Info.ID); err == nil {
			st.Memory = &directory.Memory{Region: uint32(m.index), Offset: at.Offset, Generation: at.Generation}
			break
		}
	}
	if st.Segment = b.from; b.cold {
		st.Segment = s.segmentOfLocked(b)
	}
	return st
}
