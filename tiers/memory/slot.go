package memory

import (
	"context"
	"errors"
	"fmt"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// slot is the memory of one block. All fields are guarded by the tier's mutex
// except the payload itself.
type slot struct {
	info   block.Info
	offset int64  // of the payload in the data area
	uid    uint64 // of all blocks of this process, and of those it took over
	record int64  // of the block record, -1: none
	next   uint32 // version of the block record that is written next
	names  nameSet
	pins   int
	gone   bool // out of the map; freed with the last pin
}

func (t *Tier) bytesOf(offset, size int64) []byte { return t.data[offset : offset+size : offset+size] }

func (t *Tier) errorf(id block.ID, err error) error {
	return fmt.Errorf("%s: block %v: %w", t.name, id, err)
}

// usable is the first check of every operation. The caller holds the mutex.
func (t *Tier) usable() error {
	if t.closed {
		return fmt.Errorf("%s: %w", t.name, tiers.ErrClosed)
	}
	return nil
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
	t.asked++
	for {
		if err := t.usable(); err != nil {
			return nil, err
		}
		off, err := t.allocPayload(size)
		if err == nil {
			t.pins++
			return &filling{tier: t, offset: off, size: size}, nil
		}
		if t.renewOne() {
			continue
		}
		switch {
		case t.growing || t.renewing > 0:
		case t.growErr != nil && !t.holds(size, t.alloc.Size()):
			return nil, fmt.Errorf("%s: %d bytes, with %d of %d ready: %w: %w", t.name, size, t.alloc.Size(), len(t.data), tiers.ErrShort, t.growErr)
		default:
			return nil, fmt.Errorf("%s: %d bytes: %w", t.name, size, tiers.ErrFull)
		}
		t.grew.Wait()
	}
}

// holds reports whether a block of size bytes fits a tier of total bytes that has
// nothing else in it.
func (t *Tier) holds(size, total int64) bool { return arena.RoundSize(size) <= t.forPayload(total) }

// forPayload returns what of total bytes is left for payloads; less than 0 where
// there is not even room for records.
func (t *Tier) forPayload(total int64) int64 {
	if t.records {
		total -= spareSlabs * spareSize
	}
	return total
}

// spareSlabs is how many record slabs are kept free at any time: one for each
// kind of record that one commit may need. Without them a tier that is full of
// payload could not write the record of a payload that did fit.
const spareSlabs = 4

// spareSize is a run that a record slab can be made of, in bytes.
const spareSize = 64 << 10

// allocPayload finds room for a payload, once enough is set aside for records.
func (t *Tier) allocPayload(size int64) (int64, error) {
	for t.records && len(t.spares) < spareSlabs {
		off, err := t.alloc.Alloc(spareSize, arena.Payload)
		if err != nil {
			return 0, err
		}
		t.spares = append(t.spares, off)
	}
	off, err := t.alloc.Alloc(size, arena.Payload)
	if err != nil && t.settle() {
		off, err = t.alloc.Alloc(size, arena.Payload)
	}
	if err != nil && !t.growing && !t.renews() {
		off, err = t.compact(size)
	}
	return off, err
}

// compact moves unpinned blocks together when there is clearly enough free
// memory but no run of it is long enough. It copies at most size bytes with
// the mutex held: sizes of KV blocks are few, so this is rare.
func (t *Tier) compact(size int64) (int64, error) {
	need := arena.RoundSize(size)
	if size <= arena.MaxCell || t.alloc.Free() < max(need+need/4, t.compactAt) {
		return 0, arena.ErrNoSpace
	}
	if t.records {
		storeMoving(t.super, true) // who holds a block from here on finds that it came too late
		defer storeMoving(t.super, false)
	}
	objects := make([]arena.Object, 0, len(t.slots))
	owners := make([]*slot, 0, len(t.slots))
	for _, s := range t.slots {
		if s.info.Size > arena.MaxCell {
			objects = append(objects, arena.Object{Extent: arena.Extent{Offset: s.offset, Size: s.info.Size}, Movable: t.mayMove(s)})
			owners = append(owners, s)
		}
	}
	cell := int64(-1)
	if t.records {
		var ok bool
		if cell, ok = t.recordRoom(blockRecordSize); !ok {
			return 0, arena.ErrNoSpace
		}
		defer func() { t.alloc.Release(cell, blockRecordSize) }()
	}
	t.moves++
	off, err := t.alloc.Compact(size, objects, func(i int, to int64) {
		s := owners[i]
		copy(t.bytesOf(to, s.info.Size), t.bytesOf(s.offset, s.info.Size))
		s.offset = to
		if t.records {
			cell = t.replaceRecord(s, cell)
		}
	})
	t.compactAt = 0
	if err != nil { // pins are in the way: look again when there is more to work with
		t.compactAt = t.alloc.Free() + need/4
	}
	return off, err
}

// mayMove reports whether a block can be copied elsewhere and others written over
// it at once. The caller holds the mutex.
func (t *Tier) mayMove(s *slot) bool {
	return s.pins == 0 && !t.isHeld(s) && !t.alloc.IsLent(s.offset, s.info.Size)
}

// filling is a reserved slot on its way in. It counts as a pin of the tier, so
// that Close waits for it.
type filling struct {
	tier         *Tier
	offset, size int64
	done         bool
}

func (f *filling) Bytes() []byte {
	return f.tier.bytesOf(f.offset, arena.RoundSize(f.size))[:f.size]
}

// Offset implements tiers.Slot.
func (f *filling) Offset() int64 { return f.tier.fileOffset(f.offset) }

func (f *filling) Abort() {
	t := f.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	f.release()
}

func (f *filling) release() {
	if !f.done {
		f.tier.alloc.Release(f.offset, f.size)
		f.end()
	}
}

func (f *filling) end() {
	f.done = true
	f.tier.unpinTier()
}

func (t *Tier) unpinTier() {
	if t.pins--; t.pins == 0 {
		t.grew.Broadcast()
	}
}

func (f *filling) Commit(info block.Info, names []block.Name) error {
	t := f.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.done {
		return t.errorf(info.ID, tiers.ErrClosed)
	}
	if info.Size != f.size {
		f.release()
		return t.errorf(info.ID, fmt.Errorf("commit of %d bytes into a slot of %d: %w", info.Size, f.size, tiers.ErrTooLarge))
	}
	if _, ok := t.slots[info.ID]; ok {
		f.release()
		return t.errorf(info.ID, tiers.ErrExists)
	}
	s := &slot{info: info, offset: f.offset, record: -1}
	if err := t.publishSlot(s, names); err != nil {
		f.release()
		return err
	}
	f.end()
	return nil
}

// publishSlot writes the records of a filled slot, names last, and puts it in
// the map. On error no record is left.
func (t *Tier) publishSlot(s *slot, names []block.Name) error {
	s.uid = t.nextUID
	t.nextUID++
	if t.records {
		off, err := t.allocRecord(s, blockRecordSize)
		if err != nil {
			return err
		}
		s.record = off
		t.writeRecord(s)
		for _, n := range names {
			r, err := t.writeName(s, n)
			if err != nil {
				t.dropRecords(s)
				return err
			}
			s.names.add(r)
		}
	}
	if t.slots[s.info.ID] != nil { // came while this one waited for memory
		t.dropRecords(s)
		return t.errorf(s.info.ID, tiers.ErrExists)
	}
	t.add(s)
	return nil
}

// allocRecord finds room for a record, and waits as Reserve does.
func (t *Tier) allocRecord(s *slot, size int64) (int64, error) {
	for {
		if off, ok := t.recordRoom(size); ok {
			return off, nil
		}
		if t.renewOne() {
			continue
		}
		if !t.growing && t.renewing == 0 {
			return 0, t.errorf(s.info.ID, tiers.ErrFull)
		}
		t.grew.Wait()
	}
}

// recordRoom finds room for a record in what is ready, spares included.
func (t *Tier) recordRoom(size int64) (int64, bool) {
	for {
		off, err := t.alloc.Alloc(size, arena.Records)
		if err == nil {
			return off, true
		}
		k := len(t.spares)
		if k == 0 {
			return 0, false
		}
		t.alloc.Release(t.spares[k-1], spareSize)
		t.spares = t.spares[:k-1]
	}
}

// clearCells makes the cells of a new record slab invalid as records.
func (t *Tier) clearCells(z arena.Zone, off, cell, cells int64) {
	if z != arena.Records {
		return
	}
	for i := range cells {
		retract(t.bytesOf(off+i*cell, cell))
	}
}

func (t *Tier) writeRecord(s *slot) {
	p := t.bytesOf(s.record, arena.RoundSize(blockRecordSize))
	retract(p)
	blockRecord{uid: s.uid, info: s.info, offset: s.offset, version: s.next}.write(p)
	s.next++
}

// replaceRecord writes the record of s anew in another cell before the old one
// goes, so that one of them is there at any instant, and returns the old cell.
func (t *Tier) replaceRecord(s *slot, cell int64) (old int64) {
	old, s.record = s.record, cell
	t.writeRecord(s)
	retract(t.bytesOf(old, blockRecordSize))
	return old
}

// writeName records a name of s.
func (t *Tier) writeName(s *slot, n block.Name) (nameRef, error) {
	size := nameRecordLen(n)
	off, err := t.allocRecord(s, size)
	if err != nil {
		return nameRef{}, err
	}
	writeName(t.bytesOf(off, size), s.uid, n)
	return nameRef{off, size, sumOf(n)}, nil
}

func (t *Tier) dropName(r nameRef) {
	retract(t.bytesOf(r.offset, r.size))
	t.alloc.Release(r.offset, r.size)
}

// dropRecords retracts all records of a slot, names first.
func (t *Tier) dropRecords(s *slot) {
	for _, r := range s.names.refs {
		t.dropName(r)
	}
	s.names = nameSet{}
	if s.record >= 0 {
		retract(t.bytesOf(s.record, blockRecordSize))
		t.alloc.Release(s.record, blockRecordSize)
		s.record = -1
	}
}

// withdraw takes a slot out of sight and frees it when no pin is left.
func (t *Tier) withdraw(s *slot) {
	if s.gone {
		return
	}
	s.gone = true
	delete(t.slots, s.info.ID)
	delete(t.stays, t.generation(s))
	t.payload -= s.info.Size
	t.dropRecords(s)
	t.reclaim(s)
}

// reclaim frees the room of a slot that nobody uses. Its record, if it had one,
// is gone already, so that nobody holds it from now on.
func (t *Tier) reclaim(s *slot) {
	switch {
	case !s.gone || s.pins > 0:
	case t.isHeld(s):
		t.lingering = append(t.lingering, s)
	default:
		t.free(s.offset, s.info.Size)
	}
}

// Put implements tiers.Tier.
func (t *Tier) Put(ctx context.Context, items ...tiers.Item) error {
	var done []block.ID
	for _, it := range items {
		err := ctx.Err()
		if err == nil {
			err = t.putOne(it)
		}
		if err != nil {
			for _, id := range done {
				err = errors.Join(err, t.Evict(id))
			}
			return err
		}
		done = append(done, it.Info.ID)
	}
	return nil
}

func (t *Tier) putOne(it tiers.Item) error {
	t.mu.Lock()
	_, exists := t.slots[it.Info.ID]
	t.mu.Unlock()
	if exists {
		return t.errorf(it.Info.ID, tiers.ErrExists)
	}
	s, err := t.Reserve(it.Info.Size)
	if err != nil {
		return err
	}
	copy(s.Bytes(), it.Data)
	return s.Commit(it.Info, it.Names)
}

// Evict implements tiers.Tier.
func (t *Tier) Evict(id block.ID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.find(id)
	if err != nil {
		return err
	}
	if s.pins > 0 {
		return t.errorf(id, tiers.ErrPinned)
	}
	t.withdraw(s)
	return nil
}

func (t *Tier) find(id block.ID) (*slot, error) {
	if err := t.usable(); err != nil {
		return nil, err
	}
	s := t.slots[id]
	if s == nil {
		return nil, t.errorf(id, tiers.ErrNotFound)
	}
	return s, nil
}

// Link implements tiers.Tier.
func (t *Tier) Link(id block.ID, n block.Name) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.find(id)
	if err != nil || !t.records {
		return err
	}
	r, err := t.writeName(s, n)
	if err == nil && s.gone { // while this one waited for memory
		t.dropName(r)
		err = t.errorf(id, tiers.ErrNotFound)
	}
	if err != nil {
		return err
	}
	if i := t.findName(s, r.sum, n); i >= 0 {
		old := s.names.refs[i]
		s.names.replace(i, r)
		t.dropName(old)
	} else {
		s.names.add(r)
	}
	return nil
}

// findName returns the place of the record of n's (namespace, key), of which sum
// is the sum, or -1.
func (t *Tier) findName(s *slot, sum uint64, n block.Name) int {
	return s.names.find(sum, func(r nameRef) bool {
		_, old, ok := readName(t.bytesOf(r.offset, r.size))
		return ok && old.Namespace == n.Namespace && old.Key == n.Key
	})
}

// Unlink implements tiers.Tier.
func (t *Tier) Unlink(id block.ID, n block.Name) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return err
	}
	s := t.slots[id]
	if s == nil {
		return nil
	}
	if i := t.findName(s, sumOf(n), n); i >= 0 {
		t.dropName(s.names.refs[i])
		s.names.remove(i)
	}
	return nil
}

// Rename implements tiers.Memory.
func (t *Tier) Rename(old, new block.ID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.find(old)
	if err != nil {
		return err
	}
	if _, ok := t.slots[new]; ok {
		return t.errorf(new, tiers.ErrExists)
	}
	delete(t.slots, old)
	s.info.ID = new
	t.slots[new] = s
	if !t.records {
		return nil
	}
	if cell, ok := t.recordRoom(blockRecordSize); ok {
		t.alloc.Release(t.replaceRecord(s, cell), blockRecordSize)
	} else {
		t.writeRecord(s)
	}
	return nil
}
