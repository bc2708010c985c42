package dht

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/dht/ring"
	"cascadekv/internal/block"
)

// Errors of a node. Test with errors.Is.
var (
	// ErrGone means that no rank has the block in memory where it was stated to
	// be. It is a miss, unless a segment has it.
	ErrGone = errors.New("dht: no rank has the block in memory")

	// errNoName is a rank's answer that does not have the name that it was asked to change.
	errNoName = errors.New("dht: this rank does not have the name")
)

// Local is this rank's store, as other ranks use it. Its methods are called
// concurrently and must not call the node.
type Local interface {
	// Hold pins bytes of this rank's regions for sending; see fabric.Handler.
	Hold(src fabric.Source) (fabric.Hold, error)

	// State describes a name as it is now. A name that is not here yields a
	// statement without a copy.
	State(namespace, key string) directory.Statement

	// Names calls fn with the state of every name for which want is true.
	// Neither may call the store.
	Names(want func(namespace, key string) bool, fn func(directory.Statement))

	// Expires sets when a name ends, the zero time for never, and reports whether it did:
	// this rank may not have the name any more, or not bring it up before ctx ends.
	Expires(ctx context.Context, namespace, key string, at time.Time) bool

	// Outdated withdraws a name whose put stamp is below before.
	Outdated(namespace, key string, before uint64)

	// Entrust has this rank keep names of blocks that it has in segments, as another
	// rank has them, and makes that durable. It returns which of the list it does not
	// keep, by their places: those of other bytes, or newer here. Of the statements,
	// Name, Info and Version count: the record of a name has at least that sequence number.
	Entrust(ctx context.Context, list []directory.Statement) (refused []int)

	// NamesOf lists visible names that this rank has of a block, for an answer: as far
	// as they fit. Namespace, Key and Seq count.
	NamesOf(id block.ID) []block.Name

	// Touched reports that another rank used blocks of this one: keys of chains,
	// one after the other, each head first.
	Touched(namespace string, keys []string)

	// Cleared withdraws the names of a namespace, or of all, whose put stamps are below
	// before; math.MaxUint64: all names.
	Cleared(namespace string, all bool, before uint64)

	// Status describes this rank, as JSON.
	Status() []byte
}

// Member is a rank as SetMembers describes it.
type Member struct {
	Rank        fabric.Rank
	Incarnation uint64
	Host        string
	Addr        string // of its fabric
	State       fabric.State
}

// Options configure a Node. Fabric is required.
type Options struct {
	Fabric      fabric.Fabric // the node closes it
	Incarnation uint64        // of this rank's process
	Host        string        // its node, for people

	// Replicas is how many homes a key has. Default 2: with one, the entries
	// of a dead rank would be gone with it, those of its segments for good.
	Replicas int

	// CallDeadline bounds one message, ReadDeadline one copy of a block.
	CallDeadline time.Duration // default 500 ms
	ReadDeadline time.Duration // default 2 s

	// Settle is how long the former homes are asked after a change.
	Settle time.Duration // default 10 s

	// NegativeFor is how long a key nobody has is not asked for again.
	NegativeFor time.Duration // default 20 ms

	// Ring makes a ring of ranks: prev is the node's last one, or nil for the
	// ring that the node begins with. Nil makes each node compute its own; nodes
	// in one process may share them here, for rings never change.
	Ring func(prev *ring.Ring, ranks []fabric.Rank) (*ring.Ring, error)

	// Answered and Unanswered report calls that a peer answered, or did not in
	// time: the membership suspects sooner than gossip does. May be nil.
	Answered   func(fabric.Rank)
	Unanswered func(fabric.Rank, error)

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default slog.Default
}

func (o *Options) setDefaults() {
	set := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	set(&o.CallDeadline, 500*time.Millisecond)
	set(&o.ReadDeadline, 2*time.Second)
	set(&o.Settle, 10*time.Second)
	set(&o.NegativeFor, 20*time.Millisecond)
	if o.Replicas <= 0 {
		o.Replicas = 2
	}
	if o.Ring == nil {
		replicas := o.Replicas
		o.Ring = func(prev *ring.Ring, ranks []fabric.Rank) (*ring.Ring, error) {
			if prev == nil {
				return ring.New(ranks, replicas)
			}
			return prev.Next(ranks)
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Answered == nil {
		o.Answered = func(fabric.Rank) {}
	}
	if o.Unanswered == nil {
		o.Unanswered = func(fabric.Rank, error) {}
	}
}

// Node is one rank's part of the distributed store. All methods are safe for
// concurrent use.
type Node struct {
	o     Options
	fab   fabric.Fabric
	self  fabric.Rank
	dir   *directory.Directory
	local Local

	view     atomic.Pointer[view]
	negative *negative
	stats    counters

	mu     sync.Mutex
	boxes  map[fabric.Rank]*outbox
	trials map[fabric.Rank]time.Time // when a suspect may be pinged again
	closed bool

	touches   touches
	clearings clearings
	work      context.Context
	stop      context.CancelFunc
	workers   sync.WaitGroup
}

// view is what a node goes by at one moment; it never changes.
type view struct {
	members map[fabric.Rank]Member
	ring    *ring.Ring
	former  *ring.Ring // nil once settled
	until   time.Time  // when former is of no use any more
}

// New returns a node without other members, which serves local to others.
func New(o Options, local Local) (*Node, error) {
	o.setDefaults()
	n := &Node{
		o: o, fab: o.Fabric, self: o.Fabric.Self(), dir: directory.New(), local: local,
		negative: newNegative(o.NegativeFor), boxes: map[fabric.Rank]*outbox{}, trials: map[fabric.Rank]time.Time{},
	}
	alone, err := o.Ring(nil, []fabric.Rank{n.self})
	if err != nil {
		return nil, err
	}
	me := Member{Rank: n.self, Incarnation: o.Incarnation, Host: o.Host, Addr: n.fab.Addr()}
	n.view.Store(&view{members: map[fabric.Rank]Member{n.self: me}, ring: alone})
	n.work, n.stop = context.WithCancel(context.Background())
	if err := n.fab.Serve(server{n}); err != nil {
		return nil, fmt.Errorf("dht: serve: %w", err)
	}
	n.workers.Go(n.sweep)
	return n, nil
}

// Self is this rank.
func (n *Node) Self() fabric.Rank { return n.self }

// Incarnation is that of this rank's process.
func (n *Node) Incarnation() uint64 { return n.o.Incarnation }

// Fabric is the word of the fabric in use.
func (n *Node) Fabric() string { return n.fab.Name() }

// Close stops talking to other ranks.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.mu.Unlock()
	n.stop()
	err := n.fab.Close()
	n.workers.Wait()
	return err
}

// start runs f in the background unless the node is closed.
func (n *Node) start(f func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.workers.Go(f)
	return true
}

// sweep does what the directory needs about once a second.
func (n *Node) sweep() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	away := absences{since: map[fabric.Rank]time.Time{}}
	for {
		select {
		case <-tick.C:
			longer := time.Duration(0)
			if away.lately(n.view.Load(), n.o.Now()) {
				longer = deletedFor
			}
			n.dir.Sweep(n.o.Now(), longer)
			n.settled()
			repeatClearings(n)
		case <-n.work.Done():
			return
		}
	}
}

// deletedFor is how much longer than otherwise a home remembers what was deleted while a
// rank is away: that one may have older copies, of which no home has heard.
const deletedFor = 10 * time.Minute

// statesAgain is within what time a rank that was away has stated what it has.
const statesAgain = time.Minute

// absences are the ranks that do not answer.
type absences struct {
	since map[fabric.Rank]time.Time
	last  time.Time // when one answered again
}

// lately reports whether a rank does not answer, or did not until a moment ago. One that is away for
// longer than deletedFor does not count.
func (a *absences) lately(v *view, now time.Time) (is bool) {
	for r, m := range v.members {
		since, away := a.since[r]
		switch {
		case m.State == fabric.Alive && away:
			delete(a.since, r)
			a.last = now
		case m.State != fabric.Alive && !away:
			a.since[r], is = now, true
		case m.State != fabric.Alive:
			is = is || now.Sub(since) < deletedFor
		}
	}
	return is || !a.last.IsZero() && now.Sub(a.last) < statesAgain
}

// call sends one message and reports to the membership how it went.
func (n *Node) call(caller context.Context, to fabric.Rank, k kind, v any) ([]byte, error) {
	if !n.mayAsk(to) { // before the work of encoding
		return nil, fmt.Errorf("dht: %v: %w", to, errSuspect)
	}
	msg, err := encode(k, v)
	if err != nil {
		return nil, err
	}
	answer, err := n.send(caller, to, msg)
	if err != nil {
		return nil, fmt.Errorf("dht: %v: %w", to, err)
	}
	return answer, nil
}

func (n *Node) send(caller context.Context, to fabric.Rank, msg []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(caller, n.o.CallDeadline)
	defer cancel()
	n.stats.calls.Add(1)
	answer, err := n.fab.Call(ctx, to, msg)
	n.heard(caller, to, err)
	return answer, err
}

// errSuspect stands for the answer of a peer that is not asked.
var errSuspect = fmt.Errorf("%w: it did not answer lately, and is tried again now and then", fabric.ErrUnreachable)

// mayAsk reports whether to ask a peer. Requests do not wait for one that is
// suspected: it is pinged in the background, at most once in each CallDeadline,
// until it answers or is given up.
func (n *Node) mayAsk(peer fabric.Rank) bool {
	if n.view.Load().state(peer) != fabric.Suspect {
		return true
	}
	now := n.o.Now()
	n.mu.Lock()
	due := !now.Before(n.trials[peer])
	if due {
		n.trials[peer] = now.Add(n.o.CallDeadline)
	}
	n.mu.Unlock()
	if due {
		n.start(func() { _, _ = n.send(n.work, peer, []byte{messageVersion, byte(kindPing)}) }) // heard by the membership
	}
	return false
}

// bad logs answers that no rank of this version gives; other errors are counted
// where they arise.
func (n *Node) bad(peer fabric.Rank, err error) {
	if errors.Is(err, errBadMessage) {
		n.o.Log.Error("answer of another rank", "peer", peer, "err", err)
	}
}

// heard passes on what an operation shows of a peer's health. An end that
// the operation's caller set shows nothing.
func (n *Node) heard(caller context.Context, peer fabric.Rank, err error) {
	var remote *fabric.RemoteError
	switch {
	case err == nil || errors.Is(err, fabric.ErrStale) || errors.As(err, &remote):
		n.o.Answered(peer)
	case errors.Is(err, fabric.ErrClosed) || errors.Is(err, fabric.ErrTooLarge) || caller.Err() != nil:
	default:
		n.stats.unanswered.Add(1)
		n.o.Unanswered(peer, err)
	}
}
