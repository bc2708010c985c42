package content

import (
	"context"
	"slices"
	"time"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/cascade/tombstones"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
	"cascadekv/internal/fault"
	"cascadekv/internal/locks"
)

// Least is the size of the smallest block, in bytes, that is stored once in a job. What is
// smaller costs more to agree on than to store.
const Least = 4 << 10

// Peers are the other ranks of the job. dht.Node implements it.
type Peers interface {
	// Self is this rank.
	Self() fabric.Rank

	// Publish sends statements to their homes, without waiting.
	Publish(...directory.Statement)

	// Claim states contents to their homes and returns who has them, in parallel: owners
	// with segments first, then those that claimed them, in order, this rank among them;
	// nil where nothing is known. None that is dead is named, and those that may be come last.
	Claim(ctx context.Context, claims []directory.Statement) [][]directory.Statement

	// Invalidate withdraws copies of a statement: s has those that are left. It does not
	// wait.
	Invalidate(s directory.Statement)

	// NamesOf asks an owner which names it has of a block, of which Namespace and Key
	// count.
	NamesOf(ctx context.Context, owner fabric.Rank, id block.ID) ([]block.Name, error)

	// Entrust has an owner keep names of bytes that it has in segments, and returns
	// which it refused, by place. After an error nothing is known.
	Entrust(ctx context.Context, owner fabric.Rank, list []directory.Statement) (refused []int, err error)
}

// Durable makes changes of names durable that were made before.
type Durable interface {
	SyncInTurn(ctx context.Context) error
}

// Names is what the homes of names know of this rank.
type Names interface {
	// InvalidLocked reports whether a record of a name is void.
	InvalidLocked(*block.Name) bool

	// AwaitHomes publishes what this rank has of its names, and waits until their homes
	// know. It is false when ctx ends before.
	AwaitHomes(ctx context.Context) bool
}

// Ledger is this rank's part of knowing who keeps which bytes. It is safe for concurrent
// use. Without peers and a cold tier it does nothing.
type Ledger struct {
	state    *residency.State
	nameRoom *eviction.NameBudget
	durable  Durable
	names    Names
	wake     chan struct{} // has the publisher look

	publishing locks.Mutex // from when blocks are taken from unstated until they are published
	stop       context.CancelFunc

	guarded struct { // by State.Mu
		peers    Peers
		unstated []residency.BlockID            // whose statement is due
		waits    map[residency.BlockID]wait     // blocks that another rank writes
		seconds  map[residency.BlockID]struct{} // that another rank keeps too
		cleared  []clearing                     // of namespaces, lately

		work     context.Context // ends with Leave
		nextSync *syncing        // that has not begun, nil: nobody waits for one
		syncs    bool            // syncAll runs
	}
}

// wait is how long a block has waited for another rank, and when to ask again.
type wait struct{ since, until time.Time }

// clearing empties a namespace, or all.
type clearing struct {
	*tombstones.Clearing
	until time.Time // when it is forgotten
}

// clearedFor is how long a clearing is remembered: names that another rank entrusts this one
// with may have been put before, and be on their way. It is more than a call's deadline.
const clearedFor = 10 * time.Second

// maxCleared bounds the clearings that are remembered one by one.
const maxCleared = 64

// Cleared has names that were put before a stamp be refused from then on; math.MaxUint64: all that
// were put so far. It is called before the names that are here go.
func (l *Ledger) Cleared(ns string, all bool, before uint64) {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	if l.guarded.peers == nil {
		return
	}
	if len(l.guarded.cleared) >= maxCleared { // to refuse costs a second copy, for a while
		l.guarded.cleared, all = nil, true
	}
	c := tombstones.NewClearing(ns, all, min(before, l.state.TickLocked()))
	l.guarded.cleared = append(l.guarded.cleared, clearing{c, l.state.Now().Add(clearedFor)})
}

// clearedLocked reports whether a name was put before its namespace was cleared.
func (l *Ledger) clearedLocked(n *block.Name) bool {
	return slices.ContainsFunc(l.guarded.cleared, func(c clearing) bool { return c.Has(n) })
}

// New returns the ledger of a rank without peers.
func New(s *residency.State, n *eviction.NameBudget, d Durable, names Names) *Ledger {
	l := &Ledger{state: s, nameRoom: n, durable: d, names: names, wake: make(chan struct{}, 1), stop: func() {}}
	l.publishing.SetRank(locks.Publishing)
	l.guarded.waits, l.guarded.seconds = map[residency.BlockID]wait{}, map[residency.BlockID]struct{}{}
	return l
}

// JoinLocked sets the peers, from whom Leave parts.
func (l *Ledger) JoinLocked(p Peers) {
	l.state.Mu.AssertHeld()
	if l.state.Cold == nil {
		return
	}
	l.guarded.peers = p
	work, stop := context.WithCancel(context.Background())
	l.guarded.work, l.stop = work, stop
	l.state.Workers.Go(func() { l.publishInBackground(work, p) })
}

// Leave ends publishing.
func (l *Ledger) Leave() { l.stop() }

// peers returns the peers, nil for none.
func (l *Ledger) peers() Peers {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	return l.guarded.peers
}

// keeps reports whether other ranks may rely on this one for the bytes of b.
func keeps(b *residency.Block) bool {
	return b.Cold && !b.Below.OtherOwner && b.Info.Size >= Least && !b.Info.ID.IsProvisional()
}

// PlacedLocked queues a block for a statement to its homes, if the last one is not true
// any more. It is called after every change of where b is, and when it is forgotten.
func (l *Ledger) PlacedLocked(b *residency.Block) {
	known := l.state.Mu.Blocks[b.Info.ID] == b
	due := b.Stated != residency.Unstated
	switch {
	case known && keeps(b):
		due = b.Stated != residency.StatedKept
	case known && b.Dirty() && b.Stated == residency.StatedClaim:
		due = false
	}
	if due {
		l.MovedLocked(b)
	}
}

// RestsLocked queues a block for a statement to its homes that was given a name, and that the catalogue alone knows
// in this rank's files: they may not have heard of it, for it may have had none since this rank began. Or it has gone from there.
func (l *Ledger) RestsLocked(info block.Info) {
	if info.Size >= Least && !info.ID.IsProvisional() {
		l.stateSoonLocked(info.ID)
	}
}

// MovedLocked queues a block for a statement to its homes.
func (l *Ledger) MovedLocked(b *residency.Block) { l.stateSoonLocked(b.Info.ID) }

func (l *Ledger) stateSoonLocked(id residency.BlockID) {
	if l.guarded.peers == nil {
		return
	}
	l.guarded.unstated = append(l.guarded.unstated, id)
	residency.Wake(l.wake)
}

// PublishedLocked reports whether all that is due was handed to the peers.
func (l *Ledger) PublishedLocked() bool {
	l.state.Mu.AssertHeld()
	return len(l.guarded.unstated) == 0
}

func (l *Ledger) publishInBackground(ctx context.Context, p Peers) {
	defer fault.Guard()()
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		}
		l.publish(p)
	}
}

// Publish hands to the peers what is due, before it returns.
func (l *Ledger) Publish() {
	if p := l.peers(); p != nil {
		l.publish(p)
	}
}

func (l *Ledger) publish(p Peers) {
	l.publishing.Lock() // what is taken is published before others find nothing left
	defer l.publishing.Unlock()
	for ids := l.take(); len(ids) > 0; ids = l.take() {
		p.Publish(l.State(ids...)...)
	}
}

// rests reports whether b may be a copy of what the catalogue alone knows in this rank's files: its names are this rank's.
// The catalogue may not have these yet.
func rests(b *residency.Block) bool {
	return b.From != nil && slices.ContainsFunc(b.Names(), func(n *names.Name) bool { return !n.Copied() })
}

// step bounds the blocks that are described in one go with the mutex held.
const step = 256

func (l *Ledger) take() []residency.BlockID {
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	n := min(len(l.guarded.unstated), step)
	ids := l.guarded.unstated[:n:n]
	if l.guarded.unstated = l.guarded.unstated[n:]; len(l.guarded.unstated) == 0 {
		l.guarded.unstated = nil
	}
	return ids
}

// State describes what this rank has of some contents now, in parallel to ids.
func (l *Ledger) State(ids ...residency.BlockID) []directory.Statement {
	list := make([]directory.Statement, len(ids))
	l.state.Mu.Lock()
	for i, id := range ids {
		list[i] = l.stateLocked(id)
	}
	l.state.Mu.Unlock()
	l.addSpilled(list, ids)
	return list
}

func (l *Ledger) stateLocked(id residency.BlockID) directory.Statement {
	st := directory.Statement{Version: l.state.TickLocked()}
	st.Name.Namespace, st.Name.Key, st.Name.Seq = directory.Contents, directory.ContentKey(id), directory.ContentSeq
	b := l.state.Mu.Blocks[id]
	if b == nil {
		return st
	}
	switch {
	case keeps(b):
		at, err := l.state.Cold.Files.Segment(id)
		if err != nil { // it left meanwhile, or other ranks can't read it
			break
		}
		segment := directory.Segment(at)
		st.Info, st.Segment, st.Name.Depth = b.Info, &segment, uint32(len(b.Names()))
		b.Stated = residency.StatedKept
		return st
	case b.Dirty() && b.Stated == residency.StatedClaim:
		if st.Memory = residency.MemoryOf(l.state, b); st.Memory != nil {
			st.Info, st.Name.Depth = b.Info, uint32(len(b.Names()))
			return st
		}
	}
	b.Stated = residency.Unstated
	return st
}

// addSpilled adds to statements what lies in this rank's own files and the catalogue
// alone knows of.
func (l *Ledger) addSpilled(list []directory.Statement, ids []residency.BlockID) {
	if !l.state.Cold.Spilled() {
		return
	}
	for i, f := range l.state.Cold.Files.Catalogue().Own(ids) {
		if st := &list[i]; !st.Has() && f.Info.ID == ids[i] && f.Info.Size >= Least {
			at := directory.Segment(f.Segment)
			st.Info, st.Segment = f.Info, &at
		}
	}
}

// Each calls fn with the statement of everything that this rank keeps and for which want
// is true, as dht.Local's Names does for names.
func (l *Ledger) Each(want func(namespace, key string) bool, fn func(directory.Statement)) error {
	if l.state.Cold == nil {
		return nil
	}
	wanted := func(id residency.BlockID) bool { return want(directory.Contents, directory.ContentKey(id)) }
	state := func(ids []residency.BlockID) {
		for _, st := range l.State(ids...) {
			if st.Has() {
				fn(st)
			}
		}
	}
	l.state.Mu.Lock()
	var all []residency.BlockID
	for id, b := range l.state.Mu.Blocks {
		if keeps(b) || b.Stated == residency.StatedClaim || rests(b) {
			all = append(all, id)
		}
	}
	l.state.Mu.Unlock()
	var some []residency.BlockID
	add := func(id residency.BlockID) {
		if !wanted(id) {
			return
		}
		if some = append(some, id); len(some) == step {
			state(some)
			some = some[:0]
		}
	}
	for _, id := range all {
		add(id)
	}
	var err error
	if l.state.Cold.Spilled() {
		err = l.state.Cold.Files.Catalogue().Names(false, func(f found) bool {
			add(f.Info.ID)
			l.state.Mu.Lock()
			defer l.state.Mu.Unlock()
			return !l.state.Mu.Closed
		})
	}
	state(some)
	return err
}
