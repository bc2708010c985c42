package memory

import "cascadekv/internal/arena"

// compaction is what is known of moving blocks. The space's mutex guards it.
type compaction struct {
	below int64  // free bytes below which none is tried
	moves uint64 // compactions
}

// Moves implements tiers.Memory.
func (t *Tier) Moves() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.compaction.moves
}

// compactLocked moves unpinned blocks together when there is clearly enough free
// memory but no run of it is long enough. It copies at most size bytes with
// the mutex held: sizes of KV blocks are few, so this is rare.
func (t *Tier) compactLocked(size int64) (int64, error) {
	need := arena.RoundSize(size)
	if size <= arena.MaxCell || t.mu.alloc.Free() < max(need+need/4, t.compaction.below) {
		return 0, arena.ErrNoSpace
	}
	cell := int64(-1)
	if t.super != nil {
		storeMoving(t.super, true) // who holds a block from here on finds that it came too late
		defer storeMoving(t.super, false)
	}
	objects := make([]arena.Object, 0, len(t.slots))
	owners := make([]*slot, 0, len(t.slots))
	for _, s := range t.slots {
		if s.info.Size > arena.MaxCell {
			objects = append(objects, arena.Object{Extent: s.extent(), Movable: t.mayMoveLocked(s)})
			owners = append(owners, s)
		}
	}
	if t.super != nil {
		var ok bool
		if cell, ok = t.recordRoomLocked(blockRecordSize); !ok {
			return 0, arena.ErrNoSpace
		}
		defer func() { t.mu.alloc.Release(cell, blockRecordSize) }()
	}
	t.compaction.moves++
	off, err := t.mu.alloc.Compact(size, objects, func(i int, to int64) {
		s := owners[i]
		copy(t.bytesOf(to, s.info.Size), t.bytesOf(s.offset, s.info.Size))
		s.offset = to
		if t.super != nil {
			cell = t.replaceRecordLocked(s, cell)
		}
	})
	t.compaction.below = 0
	if err != nil { // pins are in the way: look again when there is more to work with
		t.compaction.below = t.mu.alloc.Free() + need/4
	}
	return off, err
}

// mayMoveLocked reports whether a block can be copied elsewhere and others written
// over it at once.
func (t *Tier) mayMoveLocked(s *slot) bool {
	return s.pins == 0 && !t.isHeldLocked(s) && !t.mu.alloc.IsLent(s.offset, s.info.Size)
}
