package hbm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"cascadekv/gpu/cuda"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Name is the tier's word in statistics.
const Name = "hbm"

// closePatience is how long Close waits for slots and pins.
const closePatience = 5 * time.Second

// Options describe a tier. Only Context is required.
type Options struct {
	Context     *cuda.Context // the caller's; it outlives the tier
	Bytes       int64         // of device memory; 0: four fifths of what is free
	UnitBytes   int64         // default 2 MiB; a multiple of 256
	Copiers     int           // default 4: with more a GPU copies no faster
	BufferBytes int64         // pinned host memory of each, a multiple of UnitBytes; default 8 MiB, or a unit where that is more
	Arena       []byte        // mapped host memory that copies are direct from and to; it outlives the tier
}

func (o Options) withDefaults() (Options, error) {
	o.UnitBytes = cmp.Or(o.UnitBytes, 2<<20)
	o.Copiers = cmp.Or(o.Copiers, 4)
	if o.UnitBytes > 0 {
		o.BufferBytes = cmp.Or(o.BufferBytes, max(8<<20/o.UnitBytes, 1)*o.UnitBytes)
	}
	switch {
	case o.UnitBytes <= 0 || o.UnitBytes%256 != 0:
		return o, fmt.Errorf("%s: a unit of %d bytes: want a multiple of 256", Name, o.UnitBytes)
	case o.Copiers < 0 || o.Bytes < 0 || o.BufferBytes <= 0 || o.BufferBytes%o.UnitBytes != 0:
		return o, fmt.Errorf("%s: %d bytes, %d copiers of %d bytes: want whole units of %d bytes", Name, o.Bytes, o.Copiers, o.BufferBytes, o.UnitBytes)
	}
	if o.Bytes == 0 {
		free, _, err := o.Context.MemInfo()
		if err != nil {
			return o, fmt.Errorf("%s: %w", Name, err)
		}
		o.Bytes = free / 5 * 4
	}
	if o.Bytes < o.UnitBytes {
		return o, fmt.Errorf("%s: %w: %d bytes of device memory have no room for a unit of %d: stop what else uses the GPU, or set fewer bytes for a unit",
			Name, tiers.ErrUnavailable, o.Bytes, o.UnitBytes)
	}
	return o, nil
}

// Tier is device memory. It implements tiers.Memory.
type Tier struct {
	tiers.Private
	unit   int64
	units  int64
	pool   cuda.DevicePtr
	engine *engine
	users  sync.WaitGroup // slots, pins, and copies that nobody waits for

	mu struct { // guards the blocks as well
		sync.Mutex
		blocks  map[block.ID]*room
		stays   map[uint64]*room // the same, by generation
		free    []uint32         // units
		payload int64
		lost    error // why the device memory is gone
		closed  bool
	}
}

var _ tiers.Memory = (*Tier)(nil)

// room is the memory of one block. Its units do not change.
type room struct {
	units  []uint32
	info   block.Info
	stay   uint64
	pins   int // slot, pins and copies
	stored bool
}

// Open takes the device memory and pins the copiers'. Errors: those of the driver, and
// tiers.ErrUnavailable where there is not enough memory for a block.
func Open(o Options) (*Tier, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	t := &Tier{unit: o.UnitBytes, units: o.Bytes / o.UnitBytes}
	if t.pool, err = o.Context.Alloc(t.units * t.unit); err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	if t.engine, err = openEngine(o); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", Name, err), o.Context.Free(t.pool))
	}
	t.mu.blocks, t.mu.stays = map[block.ID]*room{}, map[uint64]*room{}
	t.mu.free = make([]uint32, t.units)
	for i := range t.mu.free {
		t.mu.free[i] = uint32(t.units - 1 - int64(i))
	}
	return t, nil
}

// Name implements tiers.Tier.
func (t *Tier) Name() string { return Name }

// Put implements tiers.Tier.
func (t *Tier) Put(ctx context.Context, items ...tiers.Item) error {
	return tiers.PutSlots(ctx, t, items)
}

// Usage implements tiers.Tier.
func (t *Tier) Usage() tiers.Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return tiers.Usage{Capacity: t.units * t.unit, Used: (t.units - int64(len(t.mu.free))) * t.unit, Payload: t.mu.payload, Blocks: len(t.mu.blocks)}
}

// Traffic returns the bytes that were copied directly, and by way of copiers.
func (t *Tier) Traffic() (direct, bounced int64) {
	return t.engine.direct.Load(), t.engine.bounced.Load()
}

// usableLocked returns why the tier has no blocks.
func (t *Tier) usableLocked() error {
	switch {
	case t.mu.closed:
		return fmt.Errorf("%s: %w", Name, tiers.ErrClosed)
	case t.mu.lost != nil:
		return fmt.Errorf("%s: %w: the GPU's context is lost, restart the process: %w", Name, tiers.ErrUnavailable, t.mu.lost)
	}
	return nil
}

func (t *Tier) findLocked(id block.ID) (*room, error) {
	if err := t.usableLocked(); err != nil {
		return nil, err
	}
	if r := t.mu.blocks[id]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("%s: block %v: %w", Name, id, tiers.ErrNotFound)
}

// holdLocked keeps a room until drop.
func (t *Tier) holdLocked(r *room) {
	r.pins++
	t.users.Add(1)
}

// drop ends a hold. With the last one the units of what is no block are free.
func (t *Tier) drop(r *room) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.pins--
	t.freeLocked(r)
	t.users.Done()
}

func (t *Tier) freeLocked(r *room) {
	if r.pins == 0 && !r.stored {
		t.mu.free = append(t.mu.free, r.units...)
		r.units = nil
	}
}

// forgetLocked makes a block none.
func (t *Tier) forgetLocked(r *room) {
	if r.stored {
		delete(t.mu.blocks, r.info.ID)
		delete(t.mu.stays, r.stay)
		t.mu.payload -= r.info.Size
		r.stored = false
		t.freeLocked(r)
	}
}

// failed makes an error of the driver one of the tier.
func (t *Tier) failed(err error) error {
	if cuda.Lost(err) {
		t.mu.Lock()
		t.mu.lost = cmp.Or(t.mu.lost, err)
		t.mu.Unlock()
	}
	return fmt.Errorf("%s: %w: %w", Name, tiers.ErrUnavailable, err)
}

// Reserve implements tiers.Memory.
func (t *Tier) Reserve(size int64) (tiers.Slot, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usableLocked(); err != nil {
		return nil, err
	}
	n := (size + t.unit - 1) / t.unit
	left := int64(len(t.mu.free)) - n
	switch {
	case size < 0 || n > t.units:
		return nil, fmt.Errorf("%s: %d bytes: %w", Name, size, tiers.ErrTooLarge)
	case left < 0:
		return nil, fmt.Errorf("%s: %d bytes: %w", Name, size, tiers.ErrFull)
	}
	r := &room{units: append([]uint32(nil), t.mu.free[left:]...), info: block.Info{Size: size}, stay: rand.Uint64() | 1}
	t.mu.free = t.mu.free[:left]
	t.holdLocked(r)
	return &access{tier: t, room: r, size: size, slot: true}, nil
}

// Evict implements tiers.Tier.
func (t *Tier) Evict(id block.ID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.findLocked(id)
	switch {
	case err != nil:
		return err
	case r.pins > 0:
		return fmt.Errorf("%s: block %v: %w", Name, id, tiers.ErrPinned)
	}
	t.forgetLocked(r)
	return nil
}

// Rename implements tiers.Memory.
func (t *Tier) Rename(old, id block.ID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.findLocked(old)
	switch {
	case err != nil:
		return err
	case t.mu.blocks[id] != nil:
		return fmt.Errorf("%s: block %v: %w", Name, id, tiers.ErrExists)
	}
	delete(t.mu.blocks, old)
	r.info.ID, t.mu.blocks[id] = id, r
	return nil
}

// Place implements tiers.Memory.
func (t *Tier) Place(id block.ID) (tiers.Place, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.findLocked(id)
	if err != nil {
		return tiers.Place{}, err
	}
	return tiers.Place{Offset: -1, Generation: r.stay}, nil
}

// Pin implements tiers.Tier.
func (t *Tier) Pin(id block.ID) (tiers.Pin, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.findLocked(id)
	if err != nil {
		return nil, err
	}
	t.holdLocked(r)
	return &access{tier: t, room: r, size: r.info.Size}, nil
}

// PinPlace implements tiers.Memory.
func (t *Tier) PinPlace(at tiers.Place, length int64) (tiers.Pin, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usableLocked(); err != nil {
		return nil, err
	}
	r := t.mu.stays[at.Generation]
	if r == nil || at.Offset != -1 || length < 0 || length > r.info.Size {
		return nil, fmt.Errorf("%s: no block of %d bytes at %+v: %w", Name, length, at, tiers.ErrNotFound)
	}
	t.holdLocked(r)
	return &access{tier: t, room: r, size: r.info.Size}, nil
}

// Close implements tiers.Tier. What slots and pins still hold after a few seconds, and with it the
// device memory, stays until the process ends.
func (t *Tier) Close() error {
	t.mu.Lock()
	closed := t.mu.closed
	t.mu.closed = true
	t.mu.Unlock()
	if closed {
		return fmt.Errorf("%s: %w", Name, tiers.ErrClosed)
	}
	quiet := make(chan struct{})
	go func() { t.users.Wait(); close(quiet) }()
	select {
	case <-quiet:
	case <-time.After(closePatience):
		return fmt.Errorf("%s: slots or pins are still held after %v: its device memory stays until the process ends", Name, closePatience)
	}
	err := errors.Join(t.engine.close(), t.engine.context.Free(t.pool))
	if cuda.Lost(err) {
		return nil // the memory went with the context
	}
	return err
}
