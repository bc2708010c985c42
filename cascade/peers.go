package cascade

import (
	"context"
	"math"
	"time"

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
	s.sayFinal()
	s.mu.Unlock()
	work, stop := context.WithCancel(context.Background())
	s.leavePeers = stop
	s.workers.Go(func() { s.publishInBackground(work) })
	Local{s}.Names(func(string, string) bool { return true }, func(st directory.Statement) { p.Publish(st) })
}

// say has the name's homes told of what changed. The caller holds the mutex.
func (s *Store) say(n *name) {
	s.outrun(nameID{n.entry.Namespace, n.entry.Key}, math.MaxUint64)
	if s.peers == nil || n.unsaid {
		return
	}
	n.unsaid = true
	s.unsaid = append(s.unsaid, n)
	if len(s.unsaid) == 1 {
		select {
		case s.sayWake <- struct{}{}:
		default:
		}
	}
}

// sayAll is say for all names of a block.
func (s *Store) sayAll(b *entity) {
	for _, n := range b.names {
		s.say(n)
	}
}

func (s *Store) publishInBackground(ctx context.Context) {
	defer fault.Guard()()
	for {
		select {
		case <-s.sayWake:
		case <-ctx.Done():
			return
		}
		s.publish()
	}
}

// publish says what is unsaid.
func (s *Store) publish() {
	s.saying.Lock()
	defer s.saying.Unlock()
	for batch := s.nextUnsaid(); len(batch) > 0; batch = s.nextUnsaid() {
		s.fillIn(batch)
		s.peers.Publish(batch...)
	}
}

// tellPatience bounds how long a drain waits for homes to be told.
const tellPatience = 2 * time.Second

// tellHomes has the homes that answer know where everything lies now, so that
// this rank can be lost and its segments are still found.
func (s *Store) tellHomes(ctx context.Context) {
	s.mu.Lock()
	alone := s.peers == nil
	s.mu.Unlock()
	if alone {
		return
	}
	s.publish()
	ctx, cancel := context.WithTimeout(ctx, tellPatience)
	defer cancel()
	s.peers.Settled(ctx)
}

// nextUnsaid describes names whose homes have not been told of their last
// change, as they are now.
func (s *Store) nextUnsaid() []directory.Statement {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.unsaid), publishStep)
	batch := make([]directory.Statement, 0, n)
	for i, one := range s.unsaid[:n] {
		one.unsaid, s.unsaid[i] = false, nil
		batch = append(batch, s.state(one.entry.Namespace, one.entry.Key))
	}
	if s.unsaid = s.unsaid[n:]; len(s.unsaid) == 0 {
		s.unsaid = nil
	}
	return batch
}

// state describes a name as it is now. The caller holds the mutex.
func (s *Store) state(ns, key string) directory.Statement {
	st := directory.Statement{Version: s.tick()}
	st.Name.Namespace, st.Name.Key = ns, key
	n := s.known(ns, key)
	if n == nil || n.block == nil {
		return st
	}
	b := n.block
	st.Name, st.Info = n.entry, b.info
	st.Name.Seq = n.put
	for _, m := range s.mem {
		if !b.at[m.index].present {
			continue
		}
		if at, err := m.tier.Place(b.info.ID); err == nil {
			st.Memory = &directory.Memory{Region: uint32(m.index), Offset: at.Offset, Generation: at.Generation}
			break
		}
	}
	if st.Segment = b.from; b.cold {
		st.Segment = s.segmentOf(b)
	}
	return st
}
