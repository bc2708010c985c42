package fabrictest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/arena"
)

const (
	// Region is the number of a peer's one region.
	Region = 7

	// regionSize is its length, in bytes: room for the suite's largest block
	// and as much again. Only what is used takes memory.
	regionSize = 160 << 20
)

// Peer is the service that the suite talks to, a fabric.Handler. All methods
// are safe for concurrent use.
type Peer struct {
	memory *arena.Mapping

	mu      sync.Mutex
	space   *arena.Allocator
	blocks  map[uint64]*stay // by generation
	last    uint64           // generation handed out last
	calls   int64
	running int64 // calls that are not answered yet
	holds   int64
	faults  int64
	quit    bool
	done    chan struct{}
	ended   bool
}

// stay is one block in the region, until it is evicted and not held.
type stay struct {
	offset, length int64
	holds          int
	evicted        bool
	evictHeld      bool // evict as soon as somebody holds it
}

// Serve has a fabric serve the suite until the test ends, when nothing may be held any more, and
// returns how others know it.
func Serve(t *testing.T, f fabric.Fabric, incarnation uint64) fabric.Peer {
	t.Helper()
	p, err := NewPeer()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Serve(p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if s := p.Stats(); s.Holds != 0 || s.Faults != 0 {
			t.Errorf("%v at its end: %+v", f.Self(), s)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return fabric.Peer{Rank: f.Self(), Incarnation: incarnation, Addr: f.Addr()}
}

// NewPeer returns a peer with an empty region.
func NewPeer() (*Peer, error) {
	m, err := arena.MapAnonymous(regionSize)
	if err != nil {
		return nil, fmt.Errorf("fabrictest: %w", err)
	}
	p := &Peer{
		memory: m,
		space:  arena.NewAllocator(make([]byte, regionSize/arena.Page)),
		blocks: map[uint64]*stay{},
		last:   rand.Uint64N(1 << 40), // so that no other peer's generations are right here
		done:   make(chan struct{}),
	}
	p.space.Grow(regionSize)
	return p, nil
}

// Memory is the region's memory, for fabrics that must register it. It dies
// with Close.
func (p *Peer) Memory() []byte { return p.memory.Bytes() }

// Quit is closed when the suite needs the peer no more and nothing of it is
// in use.
func (p *Peer) Quit() <-chan struct{} { return p.done }

// Close unmaps the region. The fabric that served the peer must be closed.
func (p *Peer) Close() error { return p.memory.Close() }

// Stats are a peer's counters.
type Stats struct {
	Calls   int64 // calls that came in, this one included
	Running int64 // calls not answered yet, this one included
	Holds   int64 // holds not released yet
	Faults  int64 // holds released twice
	Blocks  int64 // blocks not evicted
}

// Stats returns the counters.
func (p *Peer) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Calls: p.calls, Running: p.running, Holds: p.holds, Faults: p.faults}
	for _, b := range p.blocks {
		if !b.evicted {
			s.Blocks++
		}
	}
	return s
}

// Answer implements fabric.Handler: it carries out one command.
func (p *Peer) Answer(ctx context.Context, _ fabric.Rank, req []byte) ([]byte, error) {
	p.mu.Lock()
	p.calls++
	p.running++
	p.mu.Unlock()
	defer p.leave()
	if len(req) == 0 {
		return nil, nil
	}
	c := command{op: req[0]}
	if c.op == opEcho {
		return append([]byte(nil), req...), nil
	}
	if err := c.decode(req); err != nil {
		return nil, err
	}
	return p.obey(ctx, c)
}

func (p *Peer) obey(ctx context.Context, c command) ([]byte, error) {
	switch c.op {
	case opSleep:
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Duration(c.a)):
			return nil, nil
		}
	case opRemaining:
		end, ok := ctx.Deadline()
		if !ok {
			return nil, errors.New("the handler was given no deadline")
		}
		return json.Marshal(time.Until(end))
	case opFail:
		return nil, errors.New(failure)
	case opLong:
		if c.a > 2*fabric.MaxMessage {
			return nil, fmt.Errorf("an answer of %d bytes", c.a)
		}
		return make([]byte, c.a), nil
	case opPut:
		src, err := p.put(int64(c.a), c.b)
		if err != nil {
			return nil, err
		}
		return json.Marshal(src)
	case opEvict:
		return nil, p.evict(c.a, false)
	case opEvictHeld:
		return nil, p.evict(c.a, true)
	case opStats:
		return json.Marshal(p.Stats())
	case opQuit:
		p.mu.Lock()
		p.quit = true
		p.mu.Unlock()
		return nil, nil
	}
	return nil, fmt.Errorf("unknown command %d", c.op)
}

// leave ends a call, and the peer's work with the last one after opQuit.
func (p *Peer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	p.settle()
}

func (p *Peer) settle() {
	if p.quit && !p.ended && p.running == 0 && p.holds == 0 {
		p.ended = true
		close(p.done)
	}
}

// put makes a block of the bytes that seed determines.
func (p *Peer) put(length int64, seed uint64) (fabric.Source, error) {
	if length < 0 || length > int64(len(p.memory.Bytes())) {
		return fabric.Source{}, fmt.Errorf("put of %d bytes", length)
	}
	p.mu.Lock()
	off, err := p.space.Alloc(length, arena.Payload)
	p.last++
	src := fabric.Source{Region: Region, Offset: off, Length: length, Generation: p.last}
	p.mu.Unlock()
	if err != nil {
		return fabric.Source{}, fmt.Errorf("put of %d bytes: %w", length, err)
	}
	Fill(p.memory.Bytes()[off:off+length], seed)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocks[src.Generation] = &stay{offset: off, length: length}
	return src, nil
}

// evict ends the stay of a block, now or as soon as somebody holds it.
func (p *Peer) evict(generation uint64, held bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.blocks[generation]
	if b == nil {
		return fmt.Errorf("no generation %d", generation)
	}
	if b.evictHeld = held; !held {
		b.evicted = true
		p.reclaim(generation, b)
	}
	return nil
}

// reclaim spoils what an evicted block leaves behind, once nobody holds it.
func (p *Peer) reclaim(generation uint64, b *stay) {
	if !b.evicted || b.holds > 0 {
		return
	}
	delete(p.blocks, generation)
	old := p.memory.Bytes()[b.offset : b.offset+b.length]
	for i := range min(len(old), len(spoiled)) {
		old[i] = spoiled[i]
	}
	for n := len(spoiled); n < len(old); n *= 2 {
		copy(old[n:], old[:n])
	}
	p.space.Release(b.offset, b.length)
}

// spoiled is what evicted blocks are overwritten with.
const spoiled = "evicted "

// Hold implements fabric.Handler. A part of a block can be held too.
func (p *Peer) Hold(src fabric.Source) (fabric.Hold, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.blocks[src.Generation]
	// Compared by subtraction: what a peer asks for may be near the ends of the numbers.
	if b == nil || b.evicted || src.Region != Region || src.Length < 0 || src.Length > b.length ||
		src.Offset < b.offset || src.Offset-b.offset > b.length-src.Length {
		return nil, fmt.Errorf("fabrictest: generation %d of region %d: %w", src.Generation, src.Region, fabric.ErrStale)
	}
	b.holds++
	p.holds++
	if b.evictHeld {
		b.evicted = true
	}
	return &pin{peer: p, generation: src.Generation, bytes: p.memory.Bytes()[src.Offset : src.Offset+src.Length]}, nil
}

// pin is a fabric.Hold.
type pin struct {
	peer       *Peer
	generation uint64
	bytes      []byte
	released   bool
}

// Bytes implements fabric.Hold.
func (h *pin) Bytes() []byte { return h.bytes }

// Release implements fabric.Hold.
func (h *pin) Release() {
	p := h.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.released {
		p.faults++
		return
	}
	h.released, h.bytes = true, nil
	p.holds--
	b := p.blocks[h.generation]
	b.holds--
	p.reclaim(h.generation, b)
	p.settle()
}
