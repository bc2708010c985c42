package landing

import (
	"context"
	"fmt"
	"sync"
	"time"

	"cascadekv/internal/arena"
	"cascadekv/tiers"
)

// growStep is how much is touched at a time.
const growStep = 32 << 20

// closePatience is how long Close waits for rooms.
const closePatience = 5 * time.Second

// Pool is memory to take rooms of. All methods are safe for concurrent use.
type Pool struct {
	mapping *arena.Mapping
	size    int64
	stop    chan struct{}
	grown   chan struct{} // closed when growth has ended
	growErr error         // read it after grown

	mu       sync.Mutex
	released *sync.Cond // a room is gone
	alloc    *arena.Allocator
	rooms    int
	payload  int64 // bytes asked for
	closed   bool
}

// New maps a pool of so many bytes, rounded up to a page, and starts to touch
// them in the background. 0 makes a pool that has no room for anything.
func New(bytes int64) (*Pool, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("landing: %d bytes: a pool can not be smaller than nothing", bytes)
	}
	p := &Pool{
		size: (bytes + arena.Page - 1) / arena.Page * arena.Page,
		stop: make(chan struct{}), grown: make(chan struct{}),
	}
	p.released = sync.NewCond(&p.mu)
	p.alloc = arena.NewAllocator(make([]byte, p.size/arena.Page))
	if p.size == 0 {
		close(p.grown)
		return p, nil
	}
	m, err := arena.MapAnonymous(p.size)
	if err != nil {
		return nil, fmt.Errorf("landing: %w", err)
	}
	p.mapping = m
	go p.grow()
	return p, nil
}

// grow touches the memory step by step and hands it to the allocator.
func (p *Pool) grow() {
	defer close(p.grown)
	for at := int64(0); at < p.size; {
		select {
		case <-p.stop:
			return
		default:
		}
		n := min(growStep, p.size-at)
		if p.growErr = p.mapping.Commit(at, n); p.growErr != nil {
			return
		}
		at += n
		p.mu.Lock()
		p.alloc.Grow(n)
		p.mu.Unlock()
	}
}

// WaitReady returns when all memory is ready, could not be made so, or ctx
// ends. Take works before, on what is ready.
func (p *Pool) WaitReady(ctx context.Context) error {
	select {
	case <-p.grown:
		return p.growErr
	case <-ctx.Done():
		return fmt.Errorf("landing: memory is not ready: %w", ctx.Err())
	}
}

// Room is memory for one block.
type Room struct {
	pool  *Pool
	off   int64
	bytes []byte
	done  bool
}

// Take returns room for size bytes, or false, at once, when there is none now,
// or can never be, or the pool is closed. What the room holds is what an
// earlier block left there. The caller must Release it, and not before the last
// one who writes to it is done (see fabric.Lingering and lustre.Busy).
func (p *Pool) Take(size int64) (*Room, bool) {
	if size < 0 || size > p.size {
		return nil, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false
	}
	off, err := p.alloc.Alloc(size, arena.Payload)
	if err != nil {
		return nil, false
	}
	p.rooms++
	p.payload += size
	r := &Room{pool: p, off: off}
	if size > 0 {
		r.bytes = p.mapping.Bytes()[off : off+size : off+size]
	}
	return r, true
}

// Bytes is the room, exactly the size taken. It dies with Release.
func (r *Room) Bytes() []byte { return r.bytes }

// Release gives the room back. Calls after the first do nothing.
func (r *Room) Release() {
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.done {
		return
	}
	r.done = true
	p.alloc.Release(r.off, int64(len(r.bytes)))
	p.rooms--
	p.payload -= int64(len(r.bytes))
	p.released.Broadcast()
}

// Usage reports the pool's space: rooms are its blocks.
func (p *Pool) Usage() tiers.Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return tiers.Usage{Capacity: p.size, Used: p.alloc.Used(), Payload: p.payload, Blocks: p.rooms}
}

// Close refuses new rooms, waits up to 5 seconds for those that are out and
// unmaps the memory. If rooms outlast that, the memory stays mapped for them
// and the error matches tiers.ErrPinned. Calls after the first do nothing.
func (p *Pool) Close() error { return p.close(closePatience) }

func (p *Pool) close(patience time.Duration) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	close(p.stop)
	p.mu.Unlock()
	<-p.grown

	expired := false
	timer := time.AfterFunc(patience, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		expired = true
		p.released.Broadcast()
	})
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.rooms > 0 && !expired {
		p.released.Wait()
	}
	if p.rooms > 0 {
		return fmt.Errorf("landing: close: %d rooms outlasted %v: %w", p.rooms, patience, tiers.ErrPinned)
	}
	if p.mapping == nil {
		return nil
	}
	return p.mapping.Close()
}
