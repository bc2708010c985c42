package store

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Put is blocks on their way into the store. It is used by one goroutine at a time,
// and ends with Commit or Abort.
type Put struct {
	s        *Store
	blocks   []pending
	inflight sync.WaitGroup
	ended    bool
}

// pending is one block of a Put.
type pending struct {
	record
	skip    bool   // it is stored already, or somebody else is storing it
	written []bool // by object
	failed  error
}

// Reserve takes a GPU file for each block. One that is stored, or that another Put
// has reserved, takes none and is passed over by everything else. Errors: tiers.ErrFull (fewer
// files are free: Remove some blocks; nothing is reserved), tiers.ErrUnavailable,
// tiers.ErrClosed.
func (s *Store) Reserve(ctx context.Context, ids []block.ID) (*Put, error) {
	if p, _, err := s.reserve(ids, &s.mu.free.files); p != nil || err != nil {
		return p, err
	}
	if err := s.withLog(ctx, s.flush); err != nil {
		return nil, err
	}
	p, missing, err := s.reserve(ids, &s.mu.free.files)
	if p == nil && err == nil {
		err = fmt.Errorf("%w: nvme: %d GPU files more are wanted than are free", tiers.ErrFull, missing)
	}
	return p, err
}

// reserve is Reserve with files that are free now, those of the store or of a lot; nil if they are too few.
func (s *Store) reserve(ids []block.ID, free *[]uint32) (p *Put, missing int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil, 0, fmt.Errorf("nvme: %w", tiers.ErrClosed)
	}
	p = &Put{s: s, blocks: make([]pending, len(ids))}
	wanted := 0
	for i, id := range ids {
		b := &p.blocks[i]
		b.id = id
		b.skip = s.mu.blocks[id] != nil || s.mu.reserved[id]
		if !b.skip {
			s.mu.reserved[id] = true
			wanted++
		}
	}
	if wanted > len(*free) {
		for i := range p.blocks {
			if !p.blocks[i].skip {
				delete(s.mu.reserved, p.blocks[i].id)
			}
		}
		return nil, wanted - len(*free), nil
	}
	for i := range p.blocks {
		if b := &p.blocks[i]; !b.skip {
			b.kind, b.file = kindRegister, (*free)[0]
			*free = (*free)[1:]
			b.crcs, b.written = make([]uint32, s.layout.objects), make([]bool, s.layout.objects)
		}
	}
	return p, 0, nil
}

// Skips reports whether the block at i is passed over.
func (p *Put) Skips(i int) bool { return p.blocks[i].skip }

// StoreLayer writes keys and values of one layer of all blocks, in one batch: those
// of the block at i from the engine slot slots[i]. When it returns nothing reads the slots
// any more, unless ctx has ended: then not before the channel that Abort or Commit returns is
// closed. A block of which a transfer fails is not stored; the error is that of one of them.
// Errors: tiers.ErrUnavailable, ErrMemory.
func (p *Put) StoreLayer(ctx context.Context, layer int, slots []int) error {
	return p.store(ctx, slots, layer, layer+1, func(int) int64 { return p.s.layout.fileBytes() })
}

// StoreAll is StoreLayer of all layers in one batch, of the first sizes[i] bytes of each block: what is
// behind them is not written, and not to be read.
func (p *Put) StoreAll(ctx context.Context, slots []int, sizes []int64) error {
	if err := p.s.checkSizes(sizes, len(p.blocks)); err != nil {
		return err
	}
	err := p.store(ctx, slots, 0, p.s.shape.Layers, func(i int) int64 { return sizes[i] })
	for i := range p.blocks { // objects that have no bytes have the CRC32C of none
		b := &p.blocks[i]
		for o := range b.written {
			b.written[o] = b.written[o] || int64(o)*p.s.layout.bytes >= sizes[i]
		}
	}
	return err
}

func (p *Put) store(ctx context.Context, slots []int, layer, end int, size func(i int) int64) error {
	batch, of, err := p.s.batch(layer, end, slots, len(p.blocks), func(i int) (uint32, int64) {
		b := &p.blocks[i]
		if p.ended || b.skip || b.failed != nil {
			return 0, 0
		}
		return b.file, size(i)
	})
	if err != nil {
		return err
	}
	err = p.s.transfer(ctx, &p.inflight, p.s.ringWrite, batch)
	if err != nil { // the batch is not ours to look at
		for _, x := range of {
			p.blocks[x.block].failed = err
		}
		return err
	}
	for k, t := range batch {
		b, o := &p.blocks[of[k].block], of[k].object
		if t.Err != nil {
			b.failed = fmt.Errorf("%w: nvme: write of block %v, layer %d: %w", tiers.ErrUnavailable, b.id, o/2, t.Err)
			err = b.failed
			continue
		}
		b.crcs[o], b.written[o] = t.CRC, true
	}
	return err
}

// Commit makes the blocks durable and then visible, those of which all objects are
// written; the others are given up. It returns how many are visible. The channel is closed when
// nothing reads the engine's memory any more. Errors: tiers.ErrUnavailable and tiers.ErrFull, of
// files and log: no block is visible, or with the context's, all of them may become so. An error of
// a block that was given up comes with the others visible.
func (p *Put) Commit(ctx context.Context) (visible int, quiet <-chan struct{}, err error) {
	var good []record
	for i := range p.blocks {
		b := &p.blocks[i]
		if b.skip || p.ended {
			continue
		}
		for o := range b.written {
			if b.failed == nil && !b.written[o] {
				b.failed = fmt.Errorf("%w: nvme: block %v: %w", tiers.ErrUnavailable, b.id, errIncomplete)
			}
		}
		if b.failed != nil {
			err = b.failed
			continue
		}
		good = append(good, b.record)
		b.skip = true // the rest of Commit has it
	}
	quiet = p.Abort()
	if len(good) == 0 {
		return 0, quiet, err
	}
	if failed := p.s.withLog(ctx, func() error { return p.s.register(good) }); failed != nil {
		if errors.Is(failed, errNotBegun) {
			p.s.giveBack(good)
		}
		return 0, quiet, failed
	}
	return len(good), quiet, err
}

// register makes blocks durable, writes them to the log and shows them. It is called with
// the log. If it fails their files are free again.
func (s *Store) register(good []record) error {
	containers := map[int]bool{}
	for _, r := range good {
		for o := range s.layout.objects {
			c, _ := s.layout.place(r.file, o)
			containers[c] = true
		}
	}
	err := s.syncAll(containers)
	if err == nil {
		if err = s.append(good...); err != nil {
			err = unavailable(err)
		}
	}
	if err != nil {
		s.giveBack(good)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range good {
		delete(s.mu.reserved, r.id)
		s.mu.blocks[r.id] = &stored{record: r}
	}
	s.mu.stats.Stored += uint64(len(good))
	return nil
}

// syncsAtOnce is how many containers are synced at the same time: blocks of a pool that was full lie in as many
// as there are blocks.
const syncsAtOnce = 8

// syncAll makes containers durable. The error is that of one of them.
func (s *Store) syncAll(containers map[int]bool) error {
	next := make(chan int, len(containers))
	for c := range containers {
		next <- c
	}
	close(next)
	errs := make([]error, min(syncsAtOnce, len(containers)))
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			for c := range next {
				if err := s.pool.files[c].Sync(); err != nil {
					errs[i] = fmt.Errorf("%w: nvme: %w", tiers.ErrUnavailable, err)
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// giveBack returns GPU files whose blocks were not registered. The log may have a
// record of them all the same, of a write that failed, so their removal is written before they
// are used again.
func (s *Store) giveBack(all []record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range all {
		delete(s.mu.reserved, r.id)
		s.mu.removed = append(s.mu.removed, record{kind: kindRemove, file: r.file, id: r.id})
	}
}

// Abort gives up what is not committed. The channel is closed when nothing reads the engine's
// memory any more; until then the files stay reserved.
func (p *Put) Abort() (quiet <-chan struct{}) {
	out := make(chan struct{})
	var files []uint32
	var ids []block.ID
	for i := range p.blocks {
		if b := &p.blocks[i]; !b.skip && !p.ended {
			files, ids = append(files, b.file), append(ids, b.id)
		}
	}
	p.ended = true
	go func() {
		p.inflight.Wait()
		s := p.s
		s.mu.Lock()
		for i, id := range ids {
			delete(s.mu.reserved, id)
			s.freeLocked(files[i])
		}
		s.mu.Unlock()
		close(out)
	}()
	return out
}
