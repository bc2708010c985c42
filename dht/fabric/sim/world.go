package sim

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/dht/fabric"
)

// Options describe a world's links. The zero value is a network that neither
// delays nor loses anything.
type Options struct {
	Seed     uint64
	MinDelay time.Duration // of one message, one way
	MaxDelay time.Duration
	Loss     float64 // the chance of one message to be lost, 0 to 1
}

// World is a network of ranks. All methods are safe for concurrent use.
type World struct {
	options Options

	mu    sync.RWMutex
	ranks map[fabric.Rank]*node
	group map[fabric.Rank]int // nil: no partition; ranks without one are in group 0
	links map[[2]fabric.Rank]*link
}

// New returns a world without ranks.
func New(o Options) *World {
	return &World{options: o, ranks: map[fabric.Rank]*node{}, links: map[[2]fabric.Rank]*link{}}
}

// Join adds a rank to the world, or restarts it: operations under way at an
// earlier one of that number end with fabric.ErrUnreachable, and what that one
// still sends is lost.
func (w *World) Join(rank fabric.Rank, incarnation uint64) fabric.Fabric {
	n := &node{
		world: w, rank: rank, incarnation: incarnation,
		peers: map[fabric.Rank]fabric.Peer{},
		own:   map[*operation]struct{}{}, guests: map[*guest]struct{}{},
	}
	w.mu.Lock()
	old := w.ranks[rank]
	w.ranks[rank] = n
	w.mu.Unlock()
	if old != nil {
		old.dismiss(errReset)
	}
	return n
}

// Partition splits the world: what is sent between ranks of different groups
// is lost. Ranks that are in no group are together in one more. It replaces an
// earlier partition.
func (w *World) Partition(groups ...[]fabric.Rank) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.group = map[fabric.Rank]int{}
	for i, g := range groups {
		for _, r := range g {
			w.group[r] = i + 1
		}
	}
}

// Heal ends the partition. What was lost stays lost.
func (w *World) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.group = nil
}

// Kill silences a rank: its own operations and those of others on it, those
// under way included, end with their deadlines.
func (w *World) Kill(rank fabric.Rank) {
	w.mu.Lock()
	n := w.ranks[rank]
	if n != nil {
		n.killed = true
	}
	w.mu.Unlock()
	if n != nil {
		n.dismiss(errLost)
	}
}

// Stats count what a rank has sent and received over links, lost messages at
// their sender only. What a rank sends itself is not counted.
type Stats struct {
	MessagesSent     int64 // requests, answers and payloads
	MessagesReceived int64
	BytesSent        int64 // of requests, answers and payloads; no headers
	BytesReceived    int64
}

// Stats returns the counters of the latest incarnation of each rank.
func (w *World) Stats() map[fabric.Rank]Stats {
	w.mu.RLock()
	defer w.mu.RUnlock()
	all := make(map[fabric.Rank]Stats, len(w.ranks))
	for r, n := range w.ranks {
		all[r] = Stats{
			MessagesSent: n.sent.messages.Load(), MessagesReceived: n.received.messages.Load(),
			BytesSent: n.sent.bytes.Load(), BytesReceived: n.received.bytes.Load(),
		}
	}
	return all
}

// traffic counts one direction.
type traffic struct{ messages, bytes atomic.Int64 }

func (t *traffic) count(bytes int) {
	t.messages.Add(1)
	t.bytes.Add(int64(bytes))
}

// route reports what becomes of a message from a node to a rank: the node that
// gets it, or errLost, or errReset when nobody is there.
func (w *World) route(from *node, to fabric.Rank) (*node, error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	n := w.ranks[to]
	switch {
	case from.killed || w.ranks[from.rank] != from:
		return nil, errLost
	case n == nil:
		return nil, errReset
	case n.killed || w.group[from.rank] != w.group[to]:
		return nil, errLost
	}
	return n, nil
}

// chance draws the fate of one message.
func (w *World) chance(from, to fabric.Rank) (delay time.Duration, lost bool) {
	o := &w.options
	if from == to || (o.MaxDelay <= 0 && o.Loss <= 0) {
		return 0, false
	}
	l := w.link(from, to)
	l.mu.Lock()
	defer l.mu.Unlock()
	lost = l.rng.Float64() < o.Loss
	if spread := o.MaxDelay - o.MinDelay; spread > 0 {
		return o.MinDelay + time.Duration(l.rng.Int64N(int64(spread)+1)), lost
	}
	return max(o.MinDelay, o.MaxDelay), lost
}

// link is the random source of one direction.
type link struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (w *World) link(from, to fabric.Rank) *link {
	k := [2]fabric.Rank{from, to}
	w.mu.RLock()
	l := w.links[k]
	w.mu.RUnlock()
	if l != nil {
		return l
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if l = w.links[k]; l == nil {
		l = &link{rng: rand.New(rand.NewPCG(w.options.Seed, uint64(from)<<32|uint64(to)))}
		w.links[k] = l
	}
	return l
}
