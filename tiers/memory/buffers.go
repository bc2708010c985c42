package memory

import (
	"fmt"

	"cascadekv/internal/arena"
	"cascadekv/tiers"
)

// Buffers is a bounded pool of memory for blocks that are read from elsewhere
// and stay in no tier. It is mapped, outside Go's heap, and never moves, so that
// kernels and network adapters may write to it. Its memory becomes real at its
// first use: few ranks ever use all of it, and a job that starts many ranks on a
// node would have it zeroed for nothing. Nobody waits for a buffer: without any,
// the caller falls back on not serving the block from elsewhere. All methods are
// safe for concurrent use.
type Buffers struct {
	*space
	payload int64 // bytes asked for; guarded by the space's mutex
}

// NewBuffers maps a pool of so many bytes, rounded up to a page. 0 makes a pool
// that has no room for anything.
func NewBuffers(bytes int64) (*Buffers, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("read buffers: %d bytes: negative size", bytes)
	}
	size := (bytes + arena.Page - 1) / arena.Page * arena.Page
	var m *arena.Mapping
	var data []byte
	if size > 0 {
		var err error
		if m, err = arena.MapAnonymous(size); err != nil {
			return nil, fmt.Errorf("read buffers: %w", err)
		}
		m.Huge(0, size)
		data = m.Bytes()
	}
	b := &Buffers{space: newSpace("read buffers", m, 0, data, make([]byte, size/arena.Page))}
	b.mu.alloc.Grow(size)
	b.grow(size) // there is nothing left to make ready
	return b, nil
}

// Buffer is memory for one block, exclusively its taker's until released.
type Buffer struct {
	from  *Buffers
	off   int64
	bytes []byte
	done  bool
}

// Take returns memory for size bytes, or false, at once, when there is none now,
// or can never be, or the pool is closed. What it holds is what an earlier block
// left there. The caller must Release it, and not before the last one who writes
// to it is done (see fabric.Lingering and lustre.Busy).
func (b *Buffers) Take(size int64) (*Buffer, bool) {
	if size < 0 || size > int64(len(b.data)) {
		return nil, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.closed {
		return nil, false
	}
	off, err := b.mu.alloc.Alloc(size, arena.Payload)
	if err != nil {
		return nil, false
	}
	b.mu.users++
	b.payload += size
	return &Buffer{from: b, off: off, bytes: b.bytesOf(off, size)}, true
}

// Bytes is the memory, exactly the size taken. It dies with Release.
func (r *Buffer) Bytes() []byte { return r.bytes }

// Release gives the memory back. Calls after the first do nothing.
func (r *Buffer) Release() {
	b := r.from
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.done {
		return
	}
	r.done = true
	b.mu.alloc.Release(r.off, int64(len(r.bytes)))
	b.payload -= int64(len(r.bytes))
	b.leaveLocked()
}

// Usage reports the pool's space: buffers are its blocks.
func (b *Buffers) Usage() tiers.Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return tiers.Usage{Capacity: int64(len(b.data)), Used: b.mu.alloc.Used(), Payload: b.payload, Blocks: b.mu.users}
}

// Untouched returns how many bytes of the pool are no memory yet, and will be: who
// bounds what else the process takes leaves them to it. Where that can not be known
// it is all of them.
func (b *Buffers) Untouched() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.closed || b.arena == nil {
		return 0
	}
	resident, err := b.arena.Resident()
	if err != nil {
		return int64(len(b.data))
	}
	return int64(len(b.data)) - resident
}

// Close refuses new buffers, waits up to 5 seconds for those that are out and
// unmaps the memory. If they outlast that, the memory stays mapped for them and
// the error matches tiers.ErrPinned. Calls after the first do nothing.
func (b *Buffers) Close() error { return b.close(closePatience) }
