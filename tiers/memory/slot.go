package memory

import (
	"context"
	"fmt"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// slot is the memory of one block. All fields are guarded by the space's mutex
// except the payload itself.
type slot struct {
	info   block.Info
	offset int64  // of the payload in the data area
	uid    uint64 // of all blocks of this process, and of those it took over
	record int64  // of the block record, -1: none
	next   uint32 // version of the block record that is written next
	names  nameSet
	pins   int
	gone   bool // out of the index; freed with the last pin
}

func (s *slot) extent() arena.Extent { return arena.Extent{Offset: s.offset, Size: s.info.Size} }

func (sp *space) errorf(id block.ID, err error) error {
	return fmt.Errorf("%s: block %v: %w", sp.name, id, err)
}

// Reserve implements tiers.Memory. While memory is still being made ready, or
// made anew, it waits for that rather than report a full tier.
func (t *Tier) Reserve(size int64) (tiers.Slot, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if size > block.MaxSize || size < 0 {
		return nil, fmt.Errorf("%s: %d bytes, and a block has at most %d: %w", t.name, size, int64(block.MaxSize), tiers.ErrTooLarge)
	}
	if all := int64(len(t.data)); !t.holds(size, all) {
		return nil, fmt.Errorf("%s: %d bytes take %d with rounding, and there are %d for blocks: %w; raise %s.bytes",
			t.name, size, arena.RoundSize(size), t.forPayload(all), tiers.ErrTooLarge, t.name)
	}
	t.mu.asked++
	for {
		if err := t.usableLocked(); err != nil {
			return nil, err
		}
		if off, err := t.allocPayloadLocked(size); err == nil {
			return t.fillLocked(off, size), nil
		}
		switch {
		case t.waitLocked():
		case t.mu.growErr != nil && !t.holds(size, t.mu.alloc.Size()):
			return nil, fmt.Errorf("%s: %d bytes, with %d of %d ready: %w: %w", t.name, size, t.mu.alloc.Size(), len(t.data), tiers.ErrShort, t.mu.growErr)
		default:
			return nil, fmt.Errorf("%s: %d bytes: %w", t.name, size, tiers.ErrFull)
		}
	}
}

// ReserveNow implements tiers.Memory.
func (t *Tier) ReserveNow(size int64) (tiers.Slot, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if size < 0 || size > arena.MaxCell || t.usableLocked() != nil {
		return nil, tiers.ErrNotNow
	}
	off, err := t.allocPayloadLocked(size)
	switch {
	case err == nil:
		t.mu.asked++
		return t.fillLocked(off, size), nil
	case t.mu.growing || t.mu.renewing > 0 || t.renewsLocked() || t.mu.growErr != nil:
		return nil, tiers.ErrNotNow
	}
	return nil, tiers.ErrFull
}

// holds reports whether a block of size bytes fits a tier of total bytes that has
// nothing else in it.
func (sp *space) holds(size, total int64) bool { return arena.RoundSize(size) <= sp.forPayload(total) }

// forPayload returns what of total bytes is left for payloads; less than 0 where
// there is not even room for records.
func (sp *space) forPayload(total int64) int64 {
	if sp.super != nil {
		total -= spareSlabs * spareSize
	}
	return total
}

// allocPayloadLocked finds room for a payload, once enough is set aside for
// records.
func (t *Tier) allocPayloadLocked(size int64) (int64, error) {
	alloc := t.mu.alloc
	for t.super != nil && len(t.mu.spares) < spareSlabs {
		off, err := alloc.Alloc(spareSize, arena.Payload)
		if err != nil {
			return 0, err
		}
		t.mu.spares = append(t.mu.spares, off)
	}
	off, err := alloc.Alloc(size, arena.Payload)
	if err != nil && t.settleLocked() {
		off, err = alloc.Alloc(size, arena.Payload)
	}
	if err != nil && !t.mu.growing && !t.renewsLocked() {
		off, err = t.compactLocked(size)
	}
	return off, err
}

// filling is a reserved slot on its way in.
type filling struct {
	tiers.Host
	tier   *Tier
	offset int64
	done   bool
}

// fillLocked makes a slot of memory that nobody else has.
func (t *Tier) fillLocked(offset, size int64) *filling {
	t.mu.users++
	return &filling{Host: t.bytesOf(offset, arena.RoundSize(size))[:size], tier: t, offset: offset}
}

func (f *filling) size() int64 { return int64(len(f.Host)) }

// Offset implements tiers.Slot.
func (f *filling) Offset() int64 { return f.tier.fileOffset(f.offset) }

// Abort implements tiers.Slot.
func (f *filling) Abort() {
	f.tier.mu.Lock()
	defer f.tier.mu.Unlock()
	f.endLocked(false)
}

// endLocked ends the slot; its memory is a block's, or free again.
func (f *filling) endLocked(stored bool) {
	if f.done {
		return
	}
	f.done = true
	if !stored {
		f.tier.mu.alloc.Release(f.offset, f.size())
	}
	f.tier.leaveLocked()
}

// Commit implements tiers.Slot.
func (f *filling) Commit(info block.Info, names []block.Name) error {
	f.tier.mu.Lock()
	defer f.tier.mu.Unlock()
	err := f.commitLocked(info, names)
	f.endLocked(err == nil)
	return err
}

// commitLocked writes the records of a filled slot and makes a block of it. On
// error no record is left.
func (f *filling) commitLocked(info block.Info, names []block.Name) error {
	t := f.tier
	switch {
	case f.done:
		return t.errorf(info.ID, tiers.ErrClosed)
	case info.Size != f.size():
		return t.errorf(info.ID, fmt.Errorf("commit of %d bytes into a slot of %d: %w", info.Size, f.size(), tiers.ErrTooLarge))
	case t.slots[info.ID] != nil:
		return t.errorf(info.ID, tiers.ErrExists)
	}
	s := &slot{info: info, offset: f.offset, record: -1, uid: t.takeUID()}
	if t.super != nil {
		if err := t.writeRecordsLocked(s, names); err != nil {
			return err
		}
	}
	if t.slots[info.ID] != nil { // came while this one waited for memory
		t.dropRecordsLocked(s)
		return t.errorf(info.ID, tiers.ErrExists)
	}
	t.add(s)
	return nil
}

// withdrawLocked takes a slot out of sight and frees it when no pin is left.
func (t *Tier) withdrawLocked(s *slot) {
	if s.gone {
		return
	}
	s.gone = true
	t.remove(s)
	t.dropRecordsLocked(s)
	t.reclaimLocked(s)
}

// reclaimLocked frees the room of a slot that nobody uses. Its record, if it had
// one, is gone already, so that nobody holds it from now on.
func (t *Tier) reclaimLocked(s *slot) {
	switch {
	case !s.gone || s.pins > 0:
	case t.isHeldLocked(s):
		t.outside.lingering = append(t.outside.lingering, s)
	default:
		t.freeLocked(s.offset, s.info.Size)
	}
}

// Put implements tiers.Tier.
func (t *Tier) Put(ctx context.Context, items ...tiers.Item) error {
	return tiers.PutSlots(ctx, t, items)
}

// Evict implements tiers.Tier.
func (t *Tier) Evict(id block.ID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.findLocked(id)
	if err != nil {
		return err
	}
	if s.pins > 0 {
		return t.errorf(id, tiers.ErrPinned)
	}
	t.withdrawLocked(s)
	return nil
}

// Rename implements tiers.Memory.
func (t *Tier) Rename(old, new block.ID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.findLocked(old)
	if err != nil {
		return err
	}
	if _, ok := t.slots[new]; ok {
		return t.errorf(new, tiers.ErrExists)
	}
	delete(t.slots, old)
	s.info.ID = new
	t.slots[new] = s
	if t.super != nil {
		t.renameRecordLocked(s)
	}
	return nil
}
