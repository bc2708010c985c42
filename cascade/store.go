package cascade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/cascade/events"
	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/cascade/tombstones"
	"cascadekv/internal/block"
	"cascadekv/internal/loglimit"
	"cascadekv/tiers"
)

// Options configure a Store. The zero value of every field but Memory is useful.
type Options struct {
	Memory []tiers.Memory // fastest first, one or two
	Cold   tiers.Files    // nil: victims of the last memory tier are dropped
	Policy string         // of each memory tier: "prefix" (default), "lru", "paper"
	IDBits int            // block.Bits128 (default) or block.Bits256

	// NewPolicy makes the policy of that name for a tier of so many bytes, 0 when
	// it has no bound. Default: policy.New.
	NewPolicy func(name string, capacityBytes int64) (policy.Policy, error)

	// Capacity, when positive, is the payload bytes that the first memory
	// tier may hold, below what its memory allows. Replays use it to size a
	// tier in blocks, whatever their rounding.
	Capacity int64

	// SkipVerify serves memory hits without checking their CRC32C.
	SkipVerify bool

	// Landing gives room for a block that is read from another rank, or from
	// the cold tier, and not kept here, with what gives it back; false when it
	// has none. Default: none, and memory is mapped for each such block.
	Landing func(size int64) (room []byte, release func(), ok bool)

	// FirstEvent is the least that the number of the first event may be. A store
	// that takes another one's place begins above what that one gave, so that
	// those who follow events learn that some are forgotten.
	FirstEvent uint64

	Limits Limits

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default slog.Default

	sweepEvery time.Duration // default 1 s; negative: only Sweep sweeps
}

// Limits are the options that may change while the store runs.
type Limits struct {
	// RoomDeadline bounds how long a put waits for room, and FetchDeadline
	// how long a get waits for the cold tier, before it is a miss.
	RoomDeadline  time.Duration // default 5 s
	FetchDeadline time.Duration // default 3 s: redis-py gives up after 5 s

	// CleanAbove is the share of the last memory tier above which cold dirty
	// blocks are written to the cold tier ahead of need. Default 0.75.
	CleanAbove float64

	// LeaseShare bounds the share of the last memory tier that leases may
	// keep from eviction; above it the lease that ends first gives way.
	// Default 0.5.
	LeaseShare float64

	// NameBytes bounds the heap that names take, in bytes, by about what each takes
	// in all tiers together; 0: no bound. At the bound a new name has the store
	// forget those that are least worth keeping.
	NameBytes int64

	// ColdBytes is how many bytes the cold tier may take for this rank, dead
	// ones included, and what other runs left that falls to it. 0, when the
	// store is opened, disables the limit permanently: then only the tier decides when it
	// is full.
	ColdBytes int64
}

func (l Limits) withDefaults() Limits {
	if l.RoomDeadline <= 0 {
		l.RoomDeadline = 5 * time.Second
	}
	if l.FetchDeadline <= 0 {
		l.FetchDeadline = 3 * time.Second
	}
	if l.CleanAbove <= 0 {
		l.CleanAbove = 0.75
	}
	if l.LeaseShare <= 0 {
		l.LeaseShare = 0.5
	}
	return l
}

// Store is one rank's cache. All methods are safe for concurrent use.
//
// mu guards the index: names, blocks, and what follows from them. It is held for
// map and list operations only, never while bytes are copied, hashed, read or
// written, or lines are logged. Methods that need it end in Locked.
//
// Lock order: publishing, cleaning and flushing before mu; mu before the
// locks of tiers, of the event log and of holders.
type Store struct {
	mem       []*memTier  // fastest first
	cold      tiers.Files // nil: none
	bits      int
	verify    bool
	capacity  int64 // of the first memory tier, 0: the tier's own
	limits    atomic.Pointer[Limits]
	newPolicy func(name string, capacityBytes int64) (policy.Policy, error)
	now       func() time.Time
	born      time.Time
	log       *slog.Logger
	limited   loglimit.Limiter // of lines that clients cause

	mu struct {
		lateMutex
		closed bool

		names    *names.Graph
		blocks   map[BlockID]*blockState
		stays    uint64
		nextProv uint64

		changed chan struct{} // closed when a waiter for room should look again
		waiting int

		batch          batch     // on its way to the cold tier
		cleanRequested bool      // somebody waits for the cleaner
		syncRequested  bool      // somebody waits for the cold tier to be synced
		linkSeq        uint64    // changes of names that the cold tier has been given
		syncedSeq      uint64    // of them, those that are durable
		coldDown       time.Time // no writes to the cold tier before this

		stats  Stats // counters; the rest is filled in by Stats
		room   coldRoom
		estate estate
		short  policy.LowSpace
		access access // empty while the mutex is free

		tombstones    tombstones.Set // entries of the catalogue that this rank has invalidated
		claimed       []keptRange    // that nobody has taken
		replicate     replication
		remote        map[nameID]*fetch // from other ranks: under way, or landed
		prefetchBytes int64             // fetched ahead, or about to be

		index   *sharedIndex // nil: nobody has asked for it
		indexes uint64       // made so far
		rings   map[*Touches]struct{}
	}

	coldStats  TierStats // counters guarded by mu
	remoteHits TierStats // likewise
	coldFull   bool      // the cold tier refused the last write for want of room; guarded by cleaning
	events     *events.Log

	active   atomic.Int64 // requests' stages and views under way: the finalizer waits for quiet
	lastEnd  atomic.Int64 // when the last of them ended, Unix nanoseconds
	kept     atomic.Int64 // views that clients hold for long
	pending  pendingQueue
	fetching *semaphore    // of what is read from the cold tier
	reading  chan struct{} // capacity maxReads: who reads from other ranks
	cleaning chan struct{} // capacity 1: who holds the token writes to the cold tier
	wake     chan struct{} // has the cleaner look
	mergeNow chan struct{} // has the cold tier merge before the next tick
	stop     context.CancelFunc
	workers  sync.WaitGroup

	peers       Peers           // nil: this rank is alone
	catalogue   tiers.Catalogue // of the cold tier, nil: none
	others      atomic.Bool     // it was given parts: until then it is empty. Set with mu held
	flush       chan struct{}   // has the catalogue withdraw what is invalid
	flushing    chan struct{}   // capacity 1: who does
	landing     func(int64) ([]byte, func(), bool)
	unpublished publishQueue
	publishing  sync.Mutex // from when names are taken from unpublished until they are published
	leavePeers  context.CancelFunc
	holders     holders
}

// Open takes over the tiers, recovers what earlier incarnations left in them
// and returns a Store that owns them. On error the tiers are closed.
func Open(ctx context.Context, o Options) (*Store, error) {
	s, err := newStore(o)
	if err == nil {
		err = s.recover()
	}
	if err != nil {
		for _, m := range o.Memory {
			err = errors.Join(err, m.Close())
		}
		if o.Cold != nil {
			err = errors.Join(err, o.Cold.Close())
		}
		return nil, err
	}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.workers.Go(func() { s.finalizeInBackground(work) })
	if every := cmp.Or(o.sweepEvery, time.Second); every > 0 {
		s.workers.Go(func() { s.sweepInBackground(work, every) })
	}
	if s.cold != nil {
		s.workers.Go(func() { s.cleanInBackground(work) })
		s.workers.Go(func() { s.goneInBackground(work) })
		s.workers.Go(func() { s.mergeInBackground(work) })
	}
	if s.catalogue != nil {
		s.workers.Go(func() { s.flushTombstonesInBackground(work) })
	}
	return s, nil
}

func newStore(o Options) (*Store, error) {
	if len(o.Memory) == 0 || len(o.Memory) > maxMemory {
		return nil, fmt.Errorf("cascade: %d memory tiers, want 1 to %d", len(o.Memory), maxMemory)
	}
	s := &Store{
		cold: o.Cold, bits: o.IDBits, verify: !o.SkipVerify, capacity: o.Capacity, now: o.Now, log: o.Log,
		fetching: newSemaphore(fetchPlaces), reading: make(chan struct{}, maxReads),
		landing: o.Landing, unpublished: newPublishQueue(),
		remoteHits: TierStats{Name: RemoteTier}, leavePeers: func() {},
		catalogue: catalogueOf(o.Cold), flush: make(chan struct{}, 1), flushing: make(chan struct{}, 1),
		pending:  pendingQueue{wake: make(chan struct{}, 1)},
		events:   events.New(eventsKept, o.FirstEvent),
		cleaning: make(chan struct{}, 1), wake: make(chan struct{}, 1), mergeNow: make(chan struct{}, 1),
	}
	s.mu.names, s.mu.blocks = names.New(len(o.Memory)-1), map[BlockID]*blockState{}
	s.mu.tombstones = tombstones.New()
	s.mu.remote, s.mu.replicate, s.mu.changed = map[nameID]*fetch{}, newReplication(), make(chan struct{})
	if s.bits != block.Bits256 {
		s.bits = block.Bits128
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.newPolicy = o.NewPolicy; s.newPolicy == nil {
		s.newPolicy = policy.New
	}
	s.born = s.now()
	s.SetLimits(o.Limits)
	name := o.Policy
	if name == "" {
		name = "prefix"
	}
	for i, t := range o.Memory {
		capacity := t.Usage().Capacity
		if i == 0 && o.Capacity > 0 {
			capacity = min(capacity, o.Capacity)
		}
		p, err := s.newPolicy(name, capacity)
		if err != nil {
			return nil, err
		}
		s.mem = append(s.mem, &memTier{order: order{policy: p}, index: i, tier: t, stats: TierStats{Name: t.Name(), Policy: p.Name()}})
	}
	if o.Cold != nil {
		s.coldStats.Name = o.Cold.Name()
	}
	if budget := s.limits.Load().ColdBytes; o.Cold != nil && budget > 0 {
		p, err := s.newPolicy(name, budget)
		if err != nil {
			return nil, err
		}
		s.mu.room.policy, s.coldStats.Policy = p, p.Name()
	}
	return s, nil
}

// SetLimits replaces the limits; zero fields take their defaults.
func (s *Store) SetLimits(l Limits) {
	l = l.withDefaults()
	s.limits.Store(&l)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeCleanerLocked(false) // the cold tier may have to shrink
}

// last is the slowest memory tier, the one the cold tier lies under.
func (s *Store) last() *memTier { return s.mem[len(s.mem)-1] }

// provisionalLocked returns an id for a block that is not hashed yet.
func (s *Store) provisionalLocked() BlockID {
	s.mu.nextProv++
	return block.Provisional(s.mu.nextProv)
}

// Close drains dirty blocks to the cold tier until ctx ends, then closes the
// tiers. Views must be released first.
func (s *Store) Close(ctx context.Context) error {
	if s.shut(ctx) != nil {
		return nil // it was closed before
	}
	_, err := s.drain(ctx)
	for _, m := range s.mem {
		err = errors.Join(err, m.tier.Close())
	}
	if s.cold != nil {
		err = errors.Join(err, s.cold.Close())
	}
	return err
}

// shut ends all operations and workers; the tiers are still open. ErrClosed: it
// was done before.
func (s *Store) shut(ctx context.Context) error {
	s.mu.Lock()
	if err := s.checkOpenLocked(); err != nil {
		s.mu.Unlock()
		return err
	}
	s.mu.closed = true
	s.closeIndexLocked()
	s.sweepLandedLocked(s.now(), true)
	s.wakeWaitersLocked()
	s.mu.Unlock()
	s.leavePeers()
	s.stop()
	s.workers.Wait()
	s.flushLastTombstones(ctx)
	return nil
}

// checkOpenLocked is the first check of operations that store or pin something.
func (s *Store) checkOpenLocked() error {
	if s.mu.closed {
		return ErrClosed
	}
	return nil
}

// logLocked writes a log line once the mutex is unlocked.
func (s *Store) logLocked(level slog.Level, line string, args ...any) {
	s.mu.later(func() { s.log.Log(context.Background(), level, line, args...) })
}

// wakeWaitersLocked lets everyone who waits for room look again.
func (s *Store) wakeWaitersLocked() {
	if s.mu.waiting > 0 || s.mu.closed {
		close(s.mu.changed)
		s.mu.changed = make(chan struct{})
		s.mu.waiting = 0
	}
}

// wake has a worker look, once.
func wake(worker chan struct{}) {
	select {
	case worker <- struct{}{}:
	default:
	}
}
