package store

import (
	"context"
	"fmt"
	"sync"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Get is blocks that are pinned for reading. It is used by one goroutine at a
// time, and ends with Close.
type Get struct {
	s        *Store
	blocks   []*stored
	inflight sync.WaitGroup
	closed   bool
}

// Retrieve pins the blocks in front of ids that can be read: a prefix, which may be empty. It costs
// no I/O. Errors: tiers.ErrClosed.
func (s *Store) Retrieve(ids []block.ID) (*Get, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil, fmt.Errorf("nvme: %w", tiers.ErrClosed)
	}
	g := &Get{s: s}
	for _, id := range ids {
		b := s.mu.blocks[id]
		if b == nil {
			break
		}
		b.pins++
		g.blocks = append(g.blocks, b)
	}
	return g, nil
}

// Blocks returns how many blocks are pinned.
func (g *Get) Blocks() int { return len(g.blocks) }

// RetrieveLayer reads keys and values of one layer of all blocks, in one batch, into
// the engine slots slots[i], and verifies each object. It returns one error for each block, in order, or nil
// when all are good. The bytes of a block with an error are not to be used. When it returns nothing
// writes to the slots any more, unless ctx has ended: then not before the channel that
// Close returns is closed. Errors: tiers.ErrCorrupt (the block is removed, too), tiers.ErrUnavailable,
// ErrMemory.
func (g *Get) RetrieveLayer(ctx context.Context, layer int, slots []int) []error {
	if g.closed {
		return g.all(fmt.Errorf("nvme: %w", tiers.ErrClosed))
	}
	return g.retrieve(ctx, slots, layer, layer+1, func(int) int64 { return g.s.layout.fileBytes() })
}

// RetrieveAll is RetrieveLayer of all layers in one batch, of the first sizes[i] bytes of each block,
// those that StoreAll was called with.
func (g *Get) RetrieveAll(ctx context.Context, slots []int, sizes []int64) []error {
	if g.closed {
		return g.all(fmt.Errorf("nvme: %w", tiers.ErrClosed))
	}
	if err := g.s.checkSizes(sizes, len(g.blocks)); err != nil {
		return g.all(err)
	}
	return g.retrieve(ctx, slots, 0, g.s.shape.Layers, func(i int) int64 { return sizes[i] })
}

// all returns one error for each block.
func (g *Get) all(err error) []error {
	errs := make([]error, len(g.blocks))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (g *Get) retrieve(ctx context.Context, slots []int, layer, end int, size func(i int) int64) []error {
	batch, of, err := g.s.batch(layer, end, slots, len(g.blocks), func(i int) (uint32, int64) { return g.blocks[i].file, size(i) })
	if err == nil {
		err = g.s.transfer(ctx, &g.inflight, g.s.ringRead, batch)
	}
	if err != nil {
		return g.all(err)
	}
	var errs []error
	good := uint64(0)
	for k, t := range batch {
		b, o := g.blocks[of[k].block], of[k].object
		switch {
		case t.Err != nil:
			err = fmt.Errorf("%w: nvme: read of block %v, layer %d: %w", tiers.ErrUnavailable, b.id, o/2, t.Err)
		case t.CRC != b.crcs[o]:
			err = fmt.Errorf("%w: nvme: block %v, layer %d, object %d of GPU file %d", tiers.ErrCorrupt, b.id, o/2, o, b.file)
			g.s.corrupt(b)
		default:
			good++
			continue
		}
		if errs == nil {
			errs = make([]error, len(g.blocks))
		}
		errs[of[k].block] = err
	}
	g.s.mu.Lock()
	g.s.mu.stats.Retrieved += good
	g.s.mu.Unlock()
	return errs
}

// corrupt forgets a block with an object that is not what was written.
func (s *Store) corrupt(b *stored) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.stats.Corrupt++
	s.removeLocked(b)
}

// Close unpins the blocks once nothing writes to the engine's memory any more, and
// then closes the channel. It may be called twice.
func (g *Get) Close() (quiet <-chan struct{}) {
	out, first := make(chan struct{}), !g.closed
	g.closed = true
	go func() {
		g.inflight.Wait()
		g.s.mu.Lock()
		for _, b := range g.blocks {
			if first {
				b.pins--
				g.s.freeIfUnusedLocked(b)
			}
		}
		g.s.mu.Unlock()
		close(out)
	}()
	return out
}

// owner is which object of which block of a batch's caller a transfer is of.
type owner struct{ block, object int }

// batch makes the transfers of layers from layer to before end, those of a block next to each
// other, and returns what each one is of. of returns the GPU file of a block and how many of its bytes count, 0 to
// pass it over.
func (s *Store) batch(layer, end int, slots []int, blocks int, of func(i int) (file uint32, bytes int64)) (batch []Transfer, owners []owner, err error) {
	if layer < 0 || end > s.shape.Layers || layer >= end || len(slots) != blocks {
		return nil, nil, fmt.Errorf("%w: layer %d of %d, %d slots for %d blocks", ErrMemory, layer, s.shape.Layers, len(slots), blocks)
	}
	most := 2 * (end - layer) * blocks
	batch, owners = make([]Transfer, 0, most), make([]owner, 0, most)
	memory := make([]Entry, 0, most*(int(s.layout.bytes/s.table.granule)+2))
	for i, slot := range slots {
		file, bytes := of(i)
		for o := 2 * layer; o < 2*end && int64(o)*s.layout.bytes < bytes; o++ {
			begin := len(memory)
			if memory, err = s.table.part(memory, o, slot, min(bytes-int64(o)*s.layout.bytes, s.layout.bytes)); err != nil {
				return nil, nil, err
			}
			t := Transfer{Memory: memory[begin:len(memory):len(memory)]}
			t.Container, t.Offset = s.layout.place(file, o)
			batch, owners = append(batch, t), append(owners, owner{i, o})
		}
	}
	return batch, owners, nil
}

// checkSizes returns what is wrong with the sizes of blocks. It matches ErrMemory.
func (s *Store) checkSizes(sizes []int64, blocks int) error {
	if len(sizes) != blocks {
		return fmt.Errorf("%w: %d sizes for %d blocks", ErrMemory, len(sizes), blocks)
	}
	for _, n := range sizes {
		if n < 0 || n > s.layout.fileBytes() {
			return fmt.Errorf("%w: %d bytes of a block of %d", ErrMemory, n, s.layout.fileBytes())
		}
	}
	return nil
}

func (s *Store) ringRead(ctx context.Context, batch []Transfer)  { s.ring.Read(ctx, batch) }
func (s *Store) ringWrite(ctx context.Context, batch []Transfer) { s.ring.Write(ctx, batch) }

// transfer moves a batch, and waits until ctx or the store ends. If it returns an
// error the batch belongs to the ring, until inflight is done. Errors: tiers.ErrUnavailable.
func (s *Store) transfer(ctx context.Context, inflight *sync.WaitGroup, move func(context.Context, []Transfer), batch []Transfer) error {
	if len(batch) == 0 {
		return nil
	}
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return fmt.Errorf("nvme: %w", tiers.ErrClosed)
	}
	s.late.Add(1)
	s.mu.Unlock()
	inflight.Add(1)
	moved := make(chan struct{})
	go func() {
		defer s.late.Done()
		defer inflight.Done()
		move(ctx, batch)
		failed := uint64(0)
		for i := range batch {
			if batch[i].Err != nil {
				failed++
			}
		}
		s.mu.Lock()
		s.mu.stats.Failed += failed
		s.mu.Unlock()
		close(moved)
	}()
	select {
	case <-moved:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: nvme: %d transfers have not ended: %w", tiers.ErrUnavailable, len(batch), context.Cause(ctx))
	case <-s.alive.Done():
		return fmt.Errorf("nvme: %w", tiers.ErrClosed)
	}
}
