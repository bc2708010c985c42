package memory

import (
	"fmt"
	"math/rand/v2"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// index finds the blocks of a tier. The space's mutex guards it.
type index struct {
	slots       map[block.ID]*slot
	stays       map[uint64]*slot // the same, by generation
	generations uint64           // a slot's generation is this and its uid
	nextUID     uint64
	payload     int64 // bytes of blocks
}

// newIndex draws what generations of this process count from. The numbers of
// blocks in an arena file do not do as generations: one that was given to a
// block that is gone comes again after a take-over, and anonymous memory and a
// file that was removed start over. Drawn from 2⁶³ numbers, two processes that
// stored 2³² blocks each share a generation with a probability of 2⁻³⁰, and the
// clock has no part in it.
func newIndex() index {
	return index{slots: map[block.ID]*slot{}, stays: map[uint64]*slot{}, nextUID: 1, generations: rand.Uint64() >> 1}
}

func (x *index) takeUID() uint64 {
	x.nextUID++
	return x.nextUID - 1
}

// add makes a slot known by its id and by its generation.
func (x *index) add(s *slot) {
	x.slots[s.info.ID] = s
	x.stays[x.generation(s)] = s
	x.payload += s.info.Size
}

func (x *index) remove(s *slot) {
	delete(x.slots, s.info.ID)
	delete(x.stays, x.generation(s))
	x.payload -= s.info.Size
}

func (x *index) generation(s *slot) uint64 { return x.generations + s.uid }

func (t *Tier) findLocked(id block.ID) (*slot, error) {
	if err := t.usableLocked(); err != nil {
		return nil, err
	}
	s := t.slots[id]
	if s == nil {
		return nil, t.errorf(id, tiers.ErrNotFound)
	}
	return s, nil
}

// Place implements tiers.Memory.
func (t *Tier) Place(id block.ID) (tiers.Place, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.findLocked(id)
	if err != nil {
		return tiers.Place{}, err
	}
	return tiers.Place{Offset: t.fileOffset(s.offset), Generation: t.generation(s)}, nil
}

// PinPlace implements tiers.Memory.
func (t *Tier) PinPlace(at tiers.Place, length int64) (tiers.Pin, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usableLocked(); err != nil {
		return nil, err
	}
	s := t.stays[at.Generation]
	if s == nil || !within(at.Offset-t.fileOffset(s.offset), length, s.info.Size) {
		return nil, fmt.Errorf("%s: %d bytes at %d, generation %d: %w", t.name, length, at.Offset, at.Generation, tiers.ErrNotFound)
	}
	return t.pinLocked(s), nil
}

// within reports whether length bytes from skip on lie in a block of size bytes.
func within(skip, length, size int64) bool {
	return skip >= 0 && length >= 0 && skip <= size && length <= size-skip
}
