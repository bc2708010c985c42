package others

import (
	"context"
	"math"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/fault"
)

// Peers are the other ranks of the job, as the store uses them. dht.Node
// implements it. Methods without a context do not wait for other ranks.
type Peers interface {
	// Publish sends what this rank has of some names now to their homes. It may change
	// the list.
	Publish(...directory.Statement)

	// Settled waits until the homes that answer have all that was published,
	// and is false when ctx ends first.
	Settled(ctx context.Context) bool

	// Locate returns where the blocks of keys lie on other ranks, in parallel to
	// keys: nil for those that nobody has published.
	Locate(ctx context.Context, ns string, keys []string) [][]directory.Statement

	// Read copies located blocks out of other ranks' memory, each into its Dst, and
	// sets its Err. After an error with a method Done, Dst is not the caller's until
	// that is closed.
	Read(ctx context.Context, reads []directory.Read)

	// Invalidate withdraws copies of a statement: s has those that are left.
	Invalidate(s directory.Statement)

	// Touch reports to an owner which of its blocks were used here.
	Touch(owner fabric.Rank, ns string, keys []string)

	// Expire sets when a name ends, with the ranks that have it, and reports
	// whether there are any.
	Expire(ctx context.Context, ns, key string, at time.Time) (bool, error)

	// Delete withdraws a name put no later than stamp from all ranks, and Clear
	// a namespace, or all of them. They wait for the ranks that answer. Ranks that do
	// not answer Clear lose later what was put before a stamp.
	Delete(ctx context.Context, ns, key string, stamp uint64) error
	Clear(ctx context.Context, ns string, all bool, before uint64) error
}

// PublishStep bounds the names described in one go with the mutex held.
const PublishStep = 256

// publishQueue lists names whose last change is not published, each once. Guarded
// by State.Mu, but for wake.
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
		residency.Wake(q.wake)
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

// PublishedLocked reports whether all changes were handed to the peers.
func (x *Exchange) PublishedLocked() bool {
	x.state.Mu.AssertHeld()
	return len(x.unpublished.names) == 0
}

// EnqueuePublishLocked queues a name for publication to its homes.
func (x *Exchange) EnqueuePublishLocked(n *names.Name) {
	x.state.Mu.AssertHeld()
	x.load.InvalidateFetchLocked(residency.NameID{NS: n.Namespace(), Key: n.Key()}, math.MaxUint64)
	if x.Peers != nil {
		x.unpublished.add(n)
	}
}

// EnqueuePublishAllLocked is EnqueuePublishLocked for all names of a block.
func (x *Exchange) EnqueuePublishAllLocked(b *residency.Block) {
	for _, n := range b.Names() {
		x.EnqueuePublishLocked(n)
	}
}

func (x *Exchange) publishInBackground(ctx context.Context) {
	defer fault.Guard()()
	for {
		select {
		case <-x.unpublished.wake:
		case <-ctx.Done():
			return
		}
		x.publish()
	}
}

// publish publishes what is unpublished.
func (x *Exchange) publish() {
	x.publishing.Lock()
	defer x.publishing.Unlock()
	for batch := x.nextUnpublished(); len(batch) > 0; batch = x.nextUnpublished() {
		x.AddCatalogued(batch)
		x.Peers.Publish(batch...)
	}
}

// homesPatience bounds how long a drain waits for homes.
const homesPatience = 2 * time.Second

// AwaitHomes publishes where everything lies now and waits for the homes, so that
// this rank can be lost and its segments are still found. It is false when ctx ends, or
// some time is over, before they have all of it.
func (x *Exchange) AwaitHomes(ctx context.Context) bool {
	x.state.Mu.Lock()
	alone := x.Peers == nil
	x.state.Mu.Unlock()
	if alone {
		return true
	}
	x.publish()
	ctx, cancel := context.WithTimeout(ctx, homesPatience)
	defer cancel()
	return x.Peers.Settled(ctx)
}

// nextUnpublished describes names whose last change is not published, as they are
// now.
func (x *Exchange) nextUnpublished() []directory.Statement {
	x.state.Mu.Lock()
	defer x.state.Mu.Unlock()
	batch := make([]directory.Statement, 0, min(len(x.unpublished.names), PublishStep))
	x.unpublished.take(PublishStep, func(n *names.Name) {
		st := x.StateLocked(n.Namespace(), n.Key())
		if !st.Has() {
			st.Name.Seq = n.Put() // what it replaced is out of date, though no home has heard of the put
			if n.Ended(x.state.Now) {
				st.Name.Expires = n.Expires() // and does not come back
			}
		}
		batch = append(batch, st)
	})
	return batch
}

// StateLocked describes a name as it is now.
func (x *Exchange) StateLocked(ns, key string) directory.Statement {
	x.state.Mu.AssertHeld()
	st := directory.Statement{Version: x.state.TickLocked()}
	st.Name.Namespace, st.Name.Key = ns, key
	n := x.state.Mu.Names.Get(ns, key)
	if n == nil || n.Block() == nil {
		return st
	}
	b := residency.BlockOf(n)
	st.Name, st.Info = n.Record(), b.Info
	st.Name.Seq = n.Put()
	st.Memory = residency.MemoryOf(x.state, b)
	if st.Segment = b.From; b.Cold {
		st.Segment = x.segmentOfLocked(b)
	}
	return st
}
