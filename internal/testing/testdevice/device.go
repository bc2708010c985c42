package testdevice

import (
	"context"
	"math/rand/v2"
	"sync"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Tier is a device's memory. It implements tiers.Memory.
type Tier struct {
	tiers.Private
	mu             sync.Mutex // guards all below, and the blocks
	blocks         map[block.ID]*hidden
	capacity, used int64
	closed         bool
	faults         Faults
	over           chan struct{}  // closed when faults change
	hanging        int            // reads and writes
	users          sync.WaitGroup // slots and pins
}

// hidden is the memory of one block. Only this package reaches it.
type hidden struct {
	tiers.Host
	tier *Tier
	info block.Info
	stay uint64
	pins int

	names map[[2]string]block.Name // by namespace and key
}

// access is a slot or a pin. It has no Bytes.
type access struct {
	tiers.Hidden
	*hidden
	slot bool // until it is committed
	end  sync.Once
}

// New returns a tier of so many bytes.
func New(capacity int64) *Tier {
	return &Tier{capacity: capacity, blocks: map[block.ID]*hidden{}, over: make(chan struct{})}
}

func (t *Tier) lock() (unlock func()) { t.mu.Lock(); return t.mu.Unlock }

// with calls fn with the block that is wanted, and the tier locked.
func (t *Tier) with(want func(*hidden) bool, fn func(*hidden) error) error {
	defer t.lock()()
	if t.closed {
		return tiers.ErrClosed
	}
	for _, h := range t.blocks {
		if want(h) {
			return fn(h)
		}
	}
	return tiers.ErrNotFound
}

func called(id block.ID) func(*hidden) bool { return func(h *hidden) bool { return h.info.ID == id } }

// Corrupt changes a byte of a block.
func (t *Tier) Corrupt(id block.ID) error {
	return t.with(called(id), func(h *hidden) error { h.Host[h.info.Size/2] ^= 1; return nil })
}

// Name implements tiers.Tier.
func (t *Tier) Name() string { return "device" }

// Put implements tiers.Tier.
func (t *Tier) Put(ctx context.Context, it ...tiers.Item) error { return tiers.PutSlots(ctx, t, it) }

// Usage implements tiers.Tier.
func (t *Tier) Usage() tiers.Usage {
	defer t.lock()()
	return tiers.Usage{Capacity: t.capacity, Used: t.used, Payload: t.used, Blocks: len(t.blocks)}
}

// Close implements tiers.Tier.
func (t *Tier) Close() error {
	func() { defer t.lock()(); t.closed = true }()
	t.users.Wait()
	return nil
}

// Reserve implements tiers.Memory.
func (t *Tier) Reserve(size int64) (tiers.Slot, error) {
	defer t.lock()()
	switch {
	case t.closed:
		return nil, tiers.ErrClosed
	case t.faults.Reserves != nil:
		return nil, t.faults.Reserves
	case size > t.capacity:
		return nil, tiers.ErrTooLarge
	case t.used+size > t.capacity:
		return nil, tiers.ErrFull
	}
	t.used += size
	return (&hidden{Host: make([]byte, size), tier: t, stay: rand.Uint64() | 1}).use(true), nil
}

func (h *hidden) use(slot bool) *access {
	h.pins++
	h.tier.users.Add(1)
	return &access{hidden: h, slot: slot}
}

// Evict implements tiers.Tier.
func (t *Tier) Evict(id block.ID) error {
	return t.with(called(id), func(h *hidden) error {
		if h.pins > 0 {
			return tiers.ErrPinned
		}
		h.drop()
		return nil
	})
}

func (h *hidden) place() tiers.Place { return tiers.Place{Offset: -1, Generation: h.stay} }

func (h *hidden) drop() {
	if h.tier.blocks[h.info.ID] == h {
		delete(h.tier.blocks, h.info.ID)
		h.tier.used -= h.info.Size
	}
}

// Rename implements tiers.Memory.
func (t *Tier) Rename(old, id block.ID) error {
	return t.with(called(old), func(h *hidden) error {
		if t.blocks[id] != nil {
			return tiers.ErrExists
		}
		delete(t.blocks, old)
		h.info.ID, t.blocks[id] = id, h
		return nil
	})
}

// Place implements tiers.Memory.
func (t *Tier) Place(id block.ID) (at tiers.Place, err error) {
	err = t.with(called(id), func(h *hidden) error { at = h.place(); return nil })
	return at, err
}

// Pin implements tiers.Tier.
func (t *Tier) Pin(id block.ID) (p tiers.Pin, err error) {
	err = t.with(called(id), func(h *hidden) error { p = h.use(false); return nil })
	return p, err
}

// PinPlace implements tiers.Memory.
func (t *Tier) PinPlace(at tiers.Place, length int64) (p tiers.Pin, err error) {
	err = t.with(func(h *hidden) bool {
		return at == h.place() && length >= 0 && length <= h.info.Size
	}, func(h *hidden) error { p = h.use(false); return nil })
	return p, err
}

// Info implements tiers.Pin.
func (a *access) Info() block.Info {
	defer a.tier.lock()()
	return a.info
}

// ReadInto implements tiers.Pin.
func (a *access) ReadInto(ctx context.Context, dst []byte) error {
	return a.tier.do(ctx, false, func() error { return a.read(dst) })
}

func (a *access) read(dst []byte) error {
	crc := block.CopyCRC(0, dst, a.Host)
	defer a.tier.lock()()
	if crc == a.info.CRC {
		return nil
	}
	a.drop()
	return tiers.ErrCorrupt
}

// Write implements tiers.Slot.
func (a *access) Write(crc uint32, at int64, p []byte) (uint32, error) {
	err := a.tier.do(context.Background(), true, func() (err error) { crc, err = a.Host.Write(crc, at, p); return err })
	return crc, err
}

// CopyFrom implements tiers.Slot.
func (a *access) CopyFrom(ctx context.Context, src tiers.Pin) error {
	return a.tier.do(ctx, true, func() error { return a.Host.CopyFrom(context.Background(), src) })
}

// Commit implements tiers.Slot.
func (a *access) Commit(info block.Info, names []block.Name) error {
	defer a.Release()
	defer a.tier.lock()()
	if !a.slot || a.tier.blocks[info.ID] != nil {
		return tiers.ErrExists
	}
	a.info, a.tier.blocks[info.ID], a.slot = info, a.hidden, false
	a.names = map[[2]string]block.Name{}
	for _, n := range names {
		a.names[[2]string{n.Namespace, n.Key}] = n
	}
	return nil
}

// Abort implements tiers.Slot.
func (a *access) Abort() { a.Release() }

// Release implements tiers.Pin.
func (a *access) Release() {
	a.end.Do(func() {
		defer a.tier.lock()()
		if a.slot {
			a.tier.used -= int64(len(a.Host))
		}
		a.slot = false
		a.pins--
		a.tier.users.Done()
	})
}
