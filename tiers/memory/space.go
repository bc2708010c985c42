package memory

import (
	"fmt"
	"sync"
	"time"

	"cascadekv/internal/arena"
	"cascadekv/internal/fault"
	"cascadekv/tiers"
)

// closePatience is how long Close waits for pins, slots and buffers.
const closePatience = 5 * time.Second

// space is the memory that blocks and their records lie in: a mapping that is
// made ready in the background, what of it is in use, and what is lent.
//
// mu guards what is in it, and also the slots of a Tier.
type space struct {
	name     string
	arena    *arena.Mapping // nil: there is no memory at all
	super    []byte         // first page; nil without a file: then there are no records either
	data     []byte
	tags     []byte // the allocator's
	zeroCopy bool   // memory may be lent
	left     func() (left int64, of string)

	mu struct {
		sync.Mutex
		alloc    *arena.Allocator
		spares   []int64        // runs set aside for record slabs
		users    int            // pins, slots and buffers
		asked    uint64         // how often somebody reserved room
		lent     []arena.Extent // rooms with nothing in them whose memory is lent
		renewing int            // such rooms that get new memory just now
		growing  bool           // worth waiting for: no step was refused
		growErr  error          // why the last step was refused
		closed   bool
	}
	grew *sync.Cond // on mu: more memory is ready, or growth ended, or a use or a renewal

	workers sync.WaitGroup
	stop    chan struct{} // closed: the workers are to end
	wake    chan struct{} // there is something in lent
	settled chan struct{} // closed: all memory is ready, or a step was refused
	grown   chan struct{} // closed: nothing more grows
}

// newSpace returns a space of the bytes of a mapping from origin on, none of them
// ready.
func newSpace(name string, m *arena.Mapping, origin int64, data, tags []byte) *space {
	sp := &space{
		name: name, arena: m, data: data, tags: tags,
		stop: make(chan struct{}), wake: make(chan struct{}, 1), settled: make(chan struct{}), grown: make(chan struct{}),
	}
	sp.grew = sync.NewCond(&sp.mu)
	sp.mu.growing = true
	sp.mu.alloc = arena.NewAllocator(tags)
	sp.mu.alloc.Origin = origin
	return sp
}

// work runs fn in the background until it returns; Close waits for it.
func (sp *space) work(fn func()) {
	sp.workers.Go(func() {
		defer fault.Guard()()
		fn()
	})
}

func (sp *space) bytesOf(offset, size int64) []byte {
	return sp.data[offset : offset+size : offset+size]
}

// fileOffset is where an offset in the data area is in the mapping and its file.
func (sp *space) fileOffset(offset int64) int64 { return sp.mu.alloc.Origin + offset }

// usableLocked is the first check of every operation.
func (sp *space) usableLocked() error {
	if sp.mu.closed {
		return fmt.Errorf("%s: %w", sp.name, tiers.ErrClosed)
	}
	return nil
}

// waitLocked waits until there may be more free memory than before; false when
// none is to come.
func (sp *space) waitLocked() bool {
	if sp.renewOneLocked() {
		return true
	}
	if !sp.mu.growing && sp.mu.renewing == 0 {
		return false
	}
	sp.grew.Wait()
	return true
}

// freeLocked gives the room of a payload back; one that is lent, once it has new
// memory.
func (sp *space) freeLocked(offset, size int64) {
	if sp.mu.alloc.IsLent(offset, size) {
		sp.renewLaterLocked(arena.Extent{Offset: offset, Size: size})
	} else {
		sp.mu.alloc.Release(offset, size)
	}
}

func (sp *space) leaveLocked() {
	if sp.mu.users--; sp.mu.users == 0 {
		sp.grew.Broadcast()
	}
}

// close refuses new users, waits for those there are and unmaps the memory. If
// they outlast its patience the memory stays mapped for them and the error
// matches tiers.ErrPinned. Calls after the first do nothing.
func (sp *space) close(patience time.Duration) error {
	sp.mu.Lock()
	if sp.mu.closed {
		sp.mu.Unlock()
		return nil
	}
	sp.mu.closed = true
	close(sp.stop)
	sp.mu.Unlock()
	sp.workers.Wait()

	expired := false
	timer := time.AfterFunc(patience, func() {
		sp.mu.Lock()
		defer sp.mu.Unlock()
		expired = true
		sp.grew.Broadcast()
	})
	defer timer.Stop()
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for sp.mu.users+sp.mu.renewing > 0 && !expired {
		sp.grew.Wait()
	}
	if n := sp.mu.users + sp.mu.renewing; n > 0 {
		return fmt.Errorf("%s: close: %d pins outlasted %v: %w", sp.name, n, patience, tiers.ErrPinned)
	}
	if sp.arena == nil {
		return nil
	}
	return sp.arena.Close()
}
