package nvme

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"cascadekv/gpu/store"
	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Name is the tier's word in statistics and errors.
const Name = "nvme"

// Tier keeps blocks on local disks. It implements tiers.Memory.
type Tier struct {
	tiers.Private
	o       Options
	store   *store.Store
	mapping *arena.Mapping
	memory  []byte   // of the mapping: buffers of a GPU file each, those of staging, then those of reads
	readers chan int // buffers for reads that are free
	opener  opener

	writer
	counts counters

	mu struct { // guards the blocks as well
		sync.Mutex
		index
		changes
		staging staging
		passes
		used    int64 // GPU files of blocks, slots and lots
		users   int   // slots, pins, lots, and reads that nobody waits for
		changed chan struct{}
		closed  bool
	}
}

var _ tiers.Memory = (*Tier)(nil)

// counters count since Open.
type counters struct {
	breaks, refused, lost, corrupt, unanswered, failed atomic.Uint64
	late                                               atomic.Int64 // reads that nobody waits for any more
}

// stored is a block. The tier's mutex guards it, and pins keep it.
type stored struct {
	stay  stay
	info  block.Info
	names []*named
	pins  int
	lot   *Lot  // in which it lies, or lay before that was closed; nil: none
	gone  bool  // it is no block any more
	freed bool  // nor has anybody pinned it
	lost  error // why it is gone, if nobody evicted it

	seq     uint64 // of its coming: see changes
	written bool   // the store has it
	mem     []byte // what it is until then; nil when nobody uses it any more
	at      int    // first buffer of mem
	users   int    // of mem, the writer among them
}

// Open opens what is in o.Dirs, or makes a pool there. It returns when there is room for some blocks, or ctx ends; the
// rest is made in the background (Usage). What is there of another size is replaced. Errors: tiers.ErrUnavailable (also when another
// process uses a directory), tiers.ErrFull (there is no room on a disk), store.ErrShape.
func Open(ctx context.Context, o Options) (*Tier, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	t := &Tier{o: o, writer: newWriter(), opener: opener{o.Direct, make(chan struct{}, 1)}}
	t.mu.index, t.mu.changed = newIndex(), make(chan struct{})
	write, read := int(o.StagingBytes/o.FileBytes), int(o.ReadBytes/o.FileBytes)
	t.mu.staging = make(staging, write)
	t.readers = make(chan int, read)
	for i := range read {
		t.readers <- write + i
	}
	if t.mapping, err = arena.MapAnonymous(int64(write+read) * o.FileBytes); err != nil {
		return nil, fmt.Errorf("%s: %w: host memory for %d buffers of %d bytes: set fewer: %w", Name, tiers.ErrUnavailable, write+read, o.FileBytes, err)
	}
	t.memory = t.mapping.Bytes()
	ready := make(chan error, 1)
	go func() { ready <- t.openStore(ctx, write+read) }()
	select {
	case err = <-ready:
	case <-ctx.Done():
		go t.abandon(ready)
		return nil, fmt.Errorf("%s: %w: the disks of %q have not answered: %w", Name, tiers.ErrUnavailable, o.Dirs, context.Cause(ctx))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", Name, err), t.mapping.Close())
	}
	t.recovered()
	go t.work()
	return t, nil
}

// abandon closes a store that was opened too late.
func (t *Tier) abandon(ready <-chan error) {
	if err := <-ready; err != nil || t.store.Close(context.Background()) == nil {
		_ = t.mapping.Close() // nobody is there to hear of it
	}
}

// memoryBase is where the store takes the tier's memory to be.
const memoryBase = 1 << 40

// openStore opens the store, whose slots are the tier's buffers.
func (t *Tier) openStore(ctx context.Context, buffers int) (err error) {
	o := t.o
	if err := o.makeDirs(); err != nil {
		return err
	}
	shape := o.shape()
	memory := store.Memory{Slots: buffers}
	for i := range shape.Objects() {
		memory.Tensors = append(memory.Tensors, store.Tensor{Base: memoryBase + uint64(i)*uint64(shape.ObjectBytes()), Stride: o.FileBytes})
	}
	t.store, err = store.Open(ctx, store.Options{
		Dirs: o.Dirs, Shape: shape, Files: int(o.files()), ContainerFiles: o.containerFiles(),
		Memory: memory, Bytes: func(addr uint64, n int64) []byte { return t.memory[addr-memoryBase:][:n:n] },
		Notes: book{t}, Direct: o.Direct, FS: o.FS,
	})
	return err
}

// recovered makes the blocks that notes are of those that the store has, and the store forget what is of no block.
func (t *Tier) recovered() {
	defer t.lock()()
	known := map[block.ID]struct{}{}
	for _, b := range t.mu.blocks {
		ids := t.parts(b, 0, t.files(b.info.Size))
		if t.store.Has(ids) < len(ids) { // the rest was not written, or was given up
			t.mu.index.remove(b)
			t.mu.changes.add(encodeGone(b.stay))
			continue
		}
		b.written = true
		t.mu.used += int64(len(ids))
		for _, id := range ids {
			known[id] = struct{}{}
		}
	}
	t.store.Each(func(id block.ID) bool {
		if _, ok := known[id]; !ok {
			t.store.Remove(id)
		}
		return true
	})
}

func (t *Tier) lock() (unlock func()) { t.mu.Lock(); return t.mu.Unlock }

// files is how many GPU files a block takes.
func (t *Tier) files(size int64) int64 { return (size + t.o.FileBytes - 1) / t.o.FileBytes }

// parts returns the ids in the store of parts of a block.
func (t *Tier) parts(b *stored, from, to int64) []block.ID {
	ids := make([]block.ID, 0, to-from)
	for i := from; i < to; i++ {
		ids = append(ids, b.stay.part(i))
	}
	return ids
}

// partSize is how many bytes of a block a part has.
func (t *Tier) partSize(size, part int64) int64 { return min(size-part*t.o.FileBytes, t.o.FileBytes) }

// Name implements tiers.Tier.
func (t *Tier) Name() string { return Name }

// WaitGrown returns when all of the disk that was asked for is ready, or no more will be, with the reason. Errors:
// those of store.Store.WaitGrown.
func (t *Tier) WaitGrown(ctx context.Context) error { return t.store.WaitGrown(ctx) }

// Usage implements tiers.Tier. Capacity is what is ready; Missing what is still made, or can not be.
func (t *Tier) Usage() tiers.Usage {
	ready, wanted, short := t.store.Ready()
	u := tiers.Usage{Capacity: int64(ready) * t.o.FileBytes, Missing: int64(wanted-ready) * t.o.FileBytes}
	switch {
	case u.Missing == 0:
	case short != nil:
		u.Lacks = short.Error()
	default:
		u.Lacks = fmt.Sprintf("%s: %d of %d GPU files are made by now; wait", Name, ready, wanted)
	}
	defer t.lock()()
	u.Used, u.Payload, u.Blocks = t.mu.used*t.o.FileBytes, t.mu.payload, len(t.mu.blocks)
	return u
}

// Untouched returns how many bytes of the tier's host memory are no memory yet, and will be: who bounds
// what else the process takes leaves them to it. Where that can not be known it is all of them.
func (t *Tier) Untouched() int64 {
	defer t.lock()()
	if t.mu.closed {
		return 0
	}
	resident, err := t.mapping.Resident()
	if err != nil {
		return int64(len(t.memory))
	}
	return int64(len(t.memory)) - resident
}

// Stats implements tiers.Tier.
func (t *Tier) Stats() tiers.Stats {
	c := &t.counts
	h := &tiers.Health{
		Hanging: int(c.late.Load()), Breaks: c.breaks.Load(), Refused: c.refused.Load(), Poisoned: c.lost.Load(),
		Reads: tiers.ReadErrors{Corrupt: c.corrupt.Load(), Unanswered: c.unanswered.Load(), Failed: c.failed.Load()},
	}
	defer t.lock()()
	if t.mu.hangs() {
		h.Hanging++
	}
	h.Writes = t.brokenLocked() != nil
	h.ReadOnly = h.Writes && errors.Is(t.mu.broken, tiers.ErrFull)
	return tiers.Stats{Health: h}
}

// wakeLocked has whoever waits for a change look again.
func (t *Tier) wakeLocked() {
	close(t.mu.changed)
	t.mu.changed = make(chan struct{})
}

// await returns when the condition holds, called with the mutex held; false when ctx has ended before.
func (t *Tier) await(ctx context.Context, holds func() bool) bool {
	for {
		t.mu.Lock()
		ok, changed := holds(), t.mu.changed
		t.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// awaitEnd waits until the writer has ended, and reports whether it did: a pass may take twice as long as closePatience.
func (t *Tier) awaitEnd() bool {
	for {
		t.mu.Lock()
		ended, before := t.mu.ended, t.mu.passed
		t.mu.Unlock()
		if ended {
			return true
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*t.o.closePatience)
		moved := t.await(ctx, func() bool { return t.mu.ended || t.mu.passed != before })
		cancel()
		if !moved {
			return false
		}
	}
}

// Sync returns when all blocks and names so far are durable, those excepted whose write failed. Errors:
// tiers.ErrUnavailable, tiers.ErrFull (the disk has no room for the log), tiers.ErrClosed.
func (t *Tier) Sync(ctx context.Context) (err error) {
	t.mu.Lock()
	want, pass := t.mu.seq, t.mu.begun+1
	t.mu.Unlock()
	t.kick()
	if !t.await(ctx, func() bool {
		switch {
		case t.mu.durable >= want:
			err = nil
		case t.mu.passed >= pass && t.mu.failure != nil:
			err = t.mu.failure
		case t.mu.ended:
			err = fmt.Errorf("%s: %w", Name, tiers.ErrClosed)
		default:
			return false
		}
		return true
	}) {
		return fmt.Errorf("%s: %w: the disk has not answered: %w", Name, tiers.ErrUnavailable, context.Cause(ctx))
	}
	return err
}

// Close implements tiers.Tier. It waits some seconds for pins and slots, and for the disk as long as that writes what was
// committed, and some seconds more. What still is in use then, and the locks of the directories with it, stays until the
// disk has answered, or the process ends.
func (t *Tier) Close() error {
	t.mu.Lock()
	closed := t.mu.closed
	t.mu.closed = true
	t.wakeLocked()
	t.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.o.closePatience)
	defer cancel()
	quiet := t.await(ctx, func() bool { return t.mu.users == 0 })
	var errs []error
	if !quiet {
		errs = append(errs, fmt.Errorf("%s: slots, pins or reads still hold blocks after %v: %w", Name, t.o.closePatience, tiers.ErrPinned))
	}
	close(t.stop)
	quiet = t.awaitEnd() && quiet
	ctx, cancel = context.WithTimeout(context.Background(), t.o.closePatience)
	defer cancel()
	t.end()
	if err := t.store.Close(ctx); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", Name, err))
	} else if quiet {
		errs = append(errs, t.mapping.Close())
	}
	return errors.Join(errs...)
}
