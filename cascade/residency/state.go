package residency

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/cascade/estimate"
	"cascadekv/cascade/events"
	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/cascade/traffic"
	"cascadekv/internal/block"
	"cascadekv/internal/locks"
	"cascadekv/internal/losslog"
	"cascadekv/tiers"
)

// Options configure a store. The zero value of every field but Memory is useful.
type Options struct {
	Memory []tiers.Memory // fastest first, one to three, of which one at most lies below Ladder.Host
	Cold   tiers.Files    // nil: victims of the last memory tier are dropped
	Policy string         // of each memory tier, one of policy.Names; "": the first
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

	// ReadBuffers allocates a buffer for a block that is read but not cached here,
	// and returns its release function; false when the pool is exhausted. Default:
	// memory is mapped for each such block.
	ReadBuffers func(size int64) (buffer []byte, release func(), ok bool)

	// FirstEvent is the least that the number of the first event may be. A store
	// that takes another one's place begins above the numbers of that one, so that
	// readers of events notice that some are forgotten.
	FirstEvent uint64

	Limits Limits

	Now func() time.Time // default time.Now

	// Clock is the time of the policies, and of nothing else: since an arbitrary
	// origin. It never goes back, and is called with State.Mu held. Default: by Now.
	// A replay has the times of its trace here.
	Clock func() time.Duration

	Log *slog.Logger // default slog.Default

	SweepEvery time.Duration // default 1 s; negative: only Sweep sweeps
}

// Logs are what a rank keeps for readers of what happens, from when they ask.
type Logs struct {
	Events  *events.Log[events.Event]    // names that became readable, or no longer are
	Traffic *events.Log[traffic.Command] // what clients ask for and put
}

// State is what one rank holds: names, blocks, where each block's bytes are, and
// what is counted of it. The parts of the store share it. Fields outside Mu do not
// change once the store is open, or are safe for concurrent use.
//
// Mu is held for map and list operations only. Counters, the request that is being
// gathered and the order of the cold tier are guarded by it too.
type State struct {
	Options // with their defaults; of Limits see below
	Ladder
	Cold    *Level                 // the one in files, nil: none
	Remote  *Level                 // other ranks' memory, asked between these two; it has no tier here
	Limits  atomic.Pointer[Limits] // as they are now
	Logs    Logs
	Watch   Watcher
	Workers sync.WaitGroup // of all parts
	born    time.Time

	Mu struct {
		locks.Late
		Closed bool

		Names    *names.Graph
		Blocks   map[BlockID]*Block
		NextProv uint64

		Waiters Waiters // for room
		Writes  Writes
	}
	Count    Counters
	Requests Requests
	Leases   Leases
	Activity Activity

	Pending     PendingQueue
	CleanerWake chan struct{} // has the cleaner look
	DemoterWake chan struct{} // has who demotes to the deep level look
}

// Watcher is called when a change of the state concerns the parts above, with
// State.Mu held. Its methods must not wait.
type Watcher interface {
	// EnqueuePublishLocked queues a name for publication to its homes, and
	// EnqueuePublishAllLocked all names of a block.
	EnqueuePublishLocked(*names.Name)
	EnqueuePublishAllLocked(*Block)

	// InvalidateLocked invalidates what other ranks and earlier jobs left of puts of
	// a name stamped below.
	InvalidateLocked(id NameID, below uint64)

	// ShowLocked brings the entry of a name in the shared index up to date,
	// ShowAllLocked those of a block; HideLocked takes one out.
	ShowLocked(*names.Name)
	ShowAllLocked(*Block)
	HideLocked(*names.Name)

	// RestsLocked is called when a name was given to a block of which the catalogue alone knows where
	// this rank's files have it, and when such a one has gone: it may have no name or place in the state.
	RestsLocked(block.Info)

	// CataloguedLocked is called when the catalogue has names that are not in the state: what
	// is not here may be there from then on.
	CataloguedLocked()

	// NoteFullLocked is called when the cold tier refuses blocks for want of space.
	NoteFullLocked()
}

// eventsKept is how many events are kept: 3 MiB of them.
const eventsKept = 1 << 16

// New returns the state of a rank that holds nothing yet.
func New(o Options, w Watcher) (*State, error) {
	if len(o.Memory) == 0 || len(o.Memory) > maxMemory {
		return nil, fmt.Errorf("cascade: %d memory tiers, want 1 to %d", len(o.Memory), maxMemory)
	}
	host := hostOf(o.Memory)
	if host+2 < len(o.Memory) {
		return nil, fmt.Errorf("cascade: %d memory tiers lie below %s, the last one that the process addresses, want 1 at most", len(o.Memory)-host-1, o.Memory[host].Name())
	}
	s := &State{
		Options: o, Ladder: Ladder{host: host}, Watch: w, Logs: Logs{events.New(events.Limits[events.Event]{Kept: eventsKept}, o.FirstEvent), traffic.NewLog(o.FirstEvent)},
		Pending: PendingQueue{Wake: make(chan struct{}, 1)}, CleanerWake: make(chan struct{}, 1), DemoterWake: make(chan struct{}, 1),
	}
	s.Count.state, s.Requests.state, s.Leases.state, s.Requests.Prefetched.state = s, s, s, s
	s.Count.lost = losslog.New(lostBytes)
	s.Mu.SetRank(locks.State)
	s.Mu.Names, s.Mu.Blocks = names.New(host), map[BlockID]*Block{}
	s.Mu.Waiters.changed = make(chan struct{})
	if s.IDBits != block.Bits256 {
		s.IDBits = block.Bits128
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	if s.Log == nil {
		s.Log = slog.Default()
	}
	if s.NewPolicy == nil {
		s.NewPolicy = policy.New
	}
	s.born = s.Now()
	if s.Clock == nil {
		s.Clock = func() time.Duration { return s.Age(s.Now()) }
	}
	limits := o.Limits.WithDefaults()
	s.Limits.Store(&limits)
	return s, s.addLevels(o)
}

// addLevels makes the ladder.
func (s *State) addLevels(o Options) error {
	name := cmp.Or(o.Policy, policy.Prefix)
	for i, t := range o.Memory {
		m, u := &Level{Memory: t}, t.Usage()
		capacity := u.Capacity
		if i > s.host { // a disk is made ready while it is used
			capacity += u.Missing
			m.Writes.rate = func(l *Limits) int64 { return l.DeepWriteRate }
		}
		if i == 0 && o.Capacity > 0 {
			capacity = min(capacity, o.Capacity)
		}
		if err := s.addLevel(m, t.Name(), name, capacity); err != nil {
			return err
		}
	}
	s.Mem = s.Levels
	s.Remote = &Level{state: s, Stats: TierStats{Name: RemoteTier}, Speed: estimate.NewSpeed(assumedRemote)}
	if o.Cold == nil {
		return nil
	}
	budget := s.Limits.Load().ColdBytes
	if budget == 0 {
		name = ""
	}
	s.Cold = &Level{
		Files:  o.Cold,
		Reads:  Flow{rate: func(l *Limits) int64 { return l.ReadRate }},
		Writes: Flow{rate: func(l *Limits) int64 { return l.WriteRate }},
	}
	return s.addLevel(s.Cold, o.Cold.Name(), name, budget)
}

// What is assumed of loads before there were any: of a level that is not tried because it was slow,
// too, after a while.
var (
	assumedMemory = estimate.Line{Latency: 10 * time.Microsecond, PerByte: .2}
	assumedDeep   = estimate.Line{Latency: 200 * time.Microsecond, PerByte: .4}
	assumedRemote = estimate.Line{Latency: 200 * time.Microsecond, PerByte: .5}
	assumedFiles  = estimate.Line{Latency: time.Millisecond, PerByte: 1}
)

func assumedOf(m *Level) estimate.Line {
	switch {
	case m.Files != nil:
		return assumedFiles
	case m.Index > m.state.host:
		return assumedDeep
	}
	return assumedMemory
}

// addLevel adds a level below the others, without a policy if that has no name.
func (s *State) addLevel(m *Level, name, policy string, capacity int64) error {
	m.state, m.Index, m.Stats.Name = s, len(s.Levels), name
	m.Reads.state, m.Writes.state, m.NoReads.state, m.NoWrites.state = s, s, s, s
	m.Speed = estimate.NewSpeed(assumedOf(m))
	s.Levels = append(s.Levels, m)
	if policy == "" {
		return nil
	}
	return m.Rank(policy, capacity)
}

// Rank gives a level without a policy that of a name, for so many bytes, 0 for no
// bound.
func (m *Level) Rank(name string, capacityBytes int64) error {
	p, err := m.state.NewPolicy(name, capacityBytes)
	if err == nil {
		m.Policy, m.Stats.Policy = p, p.Name()
	}
	return err
}

// RanksColdLocked reports whether the files level has a policy.
func (s *State) RanksColdLocked() bool { return s.Cold != nil && s.Cold.Policy != nil }

// ColdName is the name of the files level, "" without one.
func (s *State) ColdName() string {
	if s.Cold == nil {
		return ""
	}
	return s.Cold.Stats.Name
}

// Namespaces lists all namespaces, in no order.
func (s *State) Namespaces() []string {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.Mu.Names.Spaces()
}

// LookStep bounds the names that are looked up in one go with the mutex held.
const LookStep = 4096

// StoredAs returns a name that is visible on this rank and has size bytes, or
// nil.
func (s *State) StoredAs(ns, key string, size int64) *names.Name {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if n := s.LookupLocked(ns, key); n != nil && BlockOf(n).Info.Size == size {
		return n
	}
	return nil
}

// Limits are the options that may change while the store runs.
type Limits struct {
	// RoomDeadline bounds how long a put waits for room, and FetchDeadline
	// how long a get waits for the cold tier, before it is a miss.
	RoomDeadline  time.Duration // default 5 s
	FetchDeadline time.Duration // default 3 s: redis-py gives up after 5 s

	// CleanAbove is the share of the last memory tier above which cold dirty
	// blocks are written to the cold tier ahead of need, and of Ladder.Host above which
	// its coldest blocks are copied to the memory tier below. Default 0.75.
	CleanAbove float64

	// StoreThreshold is how many requests a block must have been part of, its put among
	// them, before it is written to the cold tier to make room: with fewer it is
	// dropped. A drain writes all. Default 1: every block is written.
	StoreThreshold int

	// StorePromptOnly has only blocks of prompts written to the cold tier to make room:
	// generated ones are dropped, unless a later request asked for them, as part of its
	// prompt. What no client marks is of a prompt. A drain writes all.
	StorePromptOnly bool

	// WriteRate and ReadRate bound what is written to the cold tier, a drain excepted, and
	// what is read from it, in bytes per second; 0: no bound. A dirty block for whose write
	// there is no budget is dropped to make room, unless it is leased, and a load that
	// would wait for long is a miss.
	WriteRate, ReadRate int64

	// DeepWriteRate bounds likewise what is copied to Ladder.Deep. What there is no budget
	// to copy there leaves memory by the way that it has where that level takes no blocks.
	DeepWriteRate int64

	// LeaseShare bounds the bytes, as a share of Ladder.Host, that leases may
	// keep from eviction; above it the lease that ends first gives way.
	// Default 0.5.
	LeaseShare float64

	// NameBytes bounds the heap that names take, in bytes, by about what each takes
	// in all tiers together; 0: no bound. At the bound a new name has the store
	// forget those that are least worth keeping.
	NameBytes int64

	// ColdBytes is how many bytes the cold tier may take for this rank, dead ones
	// and this rank's share of the orphans included. Zero at Open disables the limit
	// permanently: then only the tier decides when it is full.
	ColdBytes int64
}

// WithDefaults replaces fields that are not positive.
func (l Limits) WithDefaults() Limits {
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

// ProvisionalLocked returns an id for a block that is not hashed yet.
func (s *State) ProvisionalLocked() BlockID {
	s.Mu.AssertHeld()
	s.Mu.NextProv++
	return block.Provisional(s.Mu.NextProv)
}

// CheckOpenLocked is the first check of operations that store or pin something.
func (s *State) CheckOpenLocked() error {
	s.Mu.AssertHeld()
	if s.Mu.Closed {
		return ErrClosed
	}
	return nil
}

// LogLocked writes a log line once the mutex is unlocked.
func (s *State) LogLocked(level slog.Level, line string, args ...any) {
	s.Mu.Later(func() { s.Log.Log(context.Background(), level, line, args...) })
}

// WakeWaitersLocked lets everyone who waits for room look again.
func (s *State) WakeWaitersLocked() {
	s.Mu.AssertHeld()
	if w := &s.Mu.Waiters; w.waiting > 0 || s.Mu.Closed {
		close(w.changed)
		*w = Waiters{changed: make(chan struct{})}
	}
}

// Wake has a worker look, once.
func Wake(worker chan struct{}) {
	select {
	case worker <- struct{}{}:
	default:
	}
}
