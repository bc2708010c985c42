package memory

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// MinBytes is the smallest arena, in bytes: room for a few slabs and blocks.
const MinBytes = 4 << 20

// closePatience is how long Close waits for pins.
const closePatience = 5 * time.Second

// Options choose the memory of a tier.
type Options struct {
	Name  string // the tier's word in statistics: "shm", "host"
	Bytes int64  // of the whole arena, MinBytes at least
	Path  string // file that outlives the process; "" means anonymous memory

	// Left returns how many more bytes the process may take, and what bounds them,
	// as part of a sentence; nil: as many as there are. It is called often, from
	// one goroutine at a time.
	Left func() (left int64, of string)

	// File is an arena that an earlier program of this process had open, and its
	// lock; nil: the file is opened by Path. Open takes it over. It keeps its size.
	File *os.File

	// Claims are ranges of the file that are to be kept for somebody outside, see
	// Claimed. Without a file none of them can be.
	Claims []tiers.Claim
}

// Tier keeps blocks in one mapping. It implements tiers.Memory.
type Tier struct {
	name    string
	opened  Opened
	arena   *arena.Mapping
	super   []byte // first page, nil without a file
	data    []byte
	records bool // blocks leave records for a later process
	left    func() (left int64, of string)

	generations uint64 // a slot's generation is this and its uid

	mu        sync.Mutex
	grew      *sync.Cond // on mu: more memory is ready, or growth ended, or a pin or a renewal
	alloc     *arena.Allocator
	slots     map[block.ID]*slot
	stays     map[uint64]*slot // the same, by generation
	nextUID   uint64
	payload   int64
	spares    []int64 // runs set aside for record slabs
	compactAt int64   // free bytes below which compaction is not tried
	moves     uint64  // compactions
	pins      int
	claimed   []tiers.Claimed
	held      func(offset int64) bool // of Watch, nil: nothing is
	lingering []*slot                 // no blocks any more, but held when they ceased to be
	zeroCopy  bool                    // memory may be lent
	asked     uint64                  // how often somebody reserved room
	lent      []arena.Extent          // rooms with nothing in them whose memory is lent
	renewing  int                     // such rooms that get new memory just now
	growing   bool                    // worth waiting for: no step was refused
	growErr   error                   // why the last step was refused
	closed    bool
	stop      chan struct{} // closed: grow and renew are to end
	wake      chan struct{} // there is something in lent
	settled   chan struct{} // closed: growing has ended
	ended     sync.Once     // closes it
	growDone  chan struct{} // closed: nothing more grows
	renewDone chan struct{}
}

var _ tiers.Memory = (*Tier)(nil)

// Open maps the arena, takes over what an earlier process left in it, every
// block verified against its checksum, and starts to make the rest of the
// memory ready in the background.
//
// What is at Path never keeps a rank from starting, unless a rank uses it: Opened
// reports what became of it. An arena of another size is taken over as well; see
// resized. What is no arena of this version and user is left alone, and one of the
// names Path.1, Path.2, … serves. Errors: those of arena.MapFile.
func Open(o Options) (*Tier, error) {
	if o.Bytes < MinBytes {
		return nil, describe(o.Bytes)
	}
	size := o.Bytes / arena.Page * arena.Page
	if o.Path == "" {
		m, err := arena.MapAnonymous(size)
		if err != nil {
			return nil, err
		}
		return start(o, m, Opened{})
	}
	seen := Opened{Wanted: size}
	m, err := mapAny(o, size, &seen)
	if err != nil {
		return nil, err
	}
	t, err := start(o, m, seen)
	if err != nil || o.File != nil || len(o.Claims) > 0 || int64(len(m.Bytes())) == size {
		return t, err
	}
	return t.resized(o, size)
}

// start makes a tier of a mapping, which it closes on error.
func start(o Options, m *arena.Mapping, seen Opened) (*Tier, error) {
	seen.Path, seen.Size, seen.Made = m.Path(), int64(len(m.Bytes())), m.Made()
	t := &Tier{name: o.Name, left: o.Left, opened: seen, arena: m, slots: map[block.ID]*slot{}, stays: map[uint64]*slot{}, nextUID: 1, growing: true,
		generations: firstGeneration(), stop: make(chan struct{}),
		wake: make(chan struct{}, 1), settled: make(chan struct{}), growDone: make(chan struct{}), renewDone: make(chan struct{})}
	t.grew = sync.NewCond(&t.mu)
	g, tags, err := t.layOut()
	if err != nil {
		if m.Made() {
			err = errors.Join(err, m.Unlink())
		}
		return nil, errors.Join(err, m.Close())
	}
	t.data = m.Bytes()[g.data : g.data+g.capacity]
	t.alloc = arena.NewAllocator(tags)
	t.alloc.Origin = g.data
	ready := int64(0)
	if t.records {
		t.alloc.Fresh = t.clearCells
		ready = t.takeOver(tags, o.Claims)
	} else {
		t.claimed = make([]tiers.Claimed, len(o.Claims))
	}
	go t.grow(g, ready)
	go t.renew()
	return t, nil
}

// layOut returns where things are in the mapping, and the allocator's tags. An
// arena that is new, or no arena any more, gets a superblock.
func (t *Tier) layOut() (geometry, []byte, error) {
	m := t.arena
	size := int64(len(m.Bytes()))
	if m.Path() == "" {
		return geometry{fileSize: size, capacity: size}, make([]byte, size/arena.Page), nil
	}
	g := geometryOf(size)
	if err := m.Commit(0, g.data); err != nil {
		return g, nil, err
	}
	t.records, t.zeroCopy = true, m.Lends()
	t.super = m.Bytes()[:arena.Page]
	tags := m.Bytes()[g.tags : g.tags+g.capacity/arena.Page]
	if !m.Existed() || g.checkSuper(t.super) != nil {
		word(t.super).Store(0)         // no magic: should the process die here, the file is new
		if t.zeroCopy && m.Existed() { // what of it is lent, nobody knows any more
			if err := errors.Join(m.Drop(0, size), m.Commit(0, g.data)); err != nil {
				return g, nil, err
			}
		}
		clear(m.Bytes()[:g.data])
		g.writeSuper(t.super)
	}
	storeMoving(t.super, false) // the process before may have died of it
	return g, tags, nil
}

// Name implements tiers.Tier.
func (t *Tier) Name() string { return t.name }

// File implements tiers.Memory.
func (t *Tier) File() int { return t.arena.Fd() }

// Close implements tiers.Tier. If pins outlast its patience the memory stays
// mapped for them and the error matches tiers.ErrPinned.
func (t *Tier) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	close(t.stop)
	t.mu.Unlock()
	<-t.growDone
	<-t.renewDone

	timer := time.AfterFunc(closePatience, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.grew.Broadcast()
	})
	defer timer.Stop()
	deadline := time.Now().Add(closePatience)
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.pins+t.renewing > 0 && time.Now().Before(deadline) {
		t.grew.Wait()
	}
	if n := t.pins + t.renewing; n > 0 {
		return fmt.Errorf("%s: close: %d pins outlasted %v: %w", t.name, n, closePatience, tiers.ErrPinned)
	}
	return t.arena.Close()
}
