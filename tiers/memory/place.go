package memory

import (
	"fmt"
	"math/rand/v2"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// firstGeneration draws what generations of this process count from. The
// numbers of blocks in an arena file do not do as generations: one that was
// given to a block that is gone comes again after a take-over, and anonymous
// memory and a file that was removed start over. Drawn from 2⁶³ numbers, two
// processes that stored 2³² blocks each share a generation with a probability
// of 2⁻³⁰, and the clock has no part in it.
func firstGeneration() uint64 { return rand.Uint64() >> 1 }

// add makes a slot known by its id and by its generation.
func (t *Tier) add(s *slot) {
	t.slots[s.info.ID] = s
	t.stays[t.generation(s)] = s
	t.payload += s.info.Size
}

func (t *Tier) generation(s *slot) uint64 { return t.generations + s.uid }

// Place implements tiers.Memory.
func (t *Tier) Place(id block.ID) (tiers.Place, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.find(id)
	if err != nil {
		return tiers.Place{}, err
	}
	return tiers.Place{Offset: t.fileOffset(s.offset), Generation: t.generation(s)}, nil
}

// Record implements tiers.Memory.
func (t *Tier) Record(id block.ID) (tiers.Record, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.find(id)
	if err != nil {
		return tiers.Record{}, err
	}
	if s.record < 0 {
		return tiers.Record{}, fmt.Errorf("%s: record of block %v: %w", t.name, id, tiers.ErrNotFound)
	}
	return tiers.Record{Offset: t.fileOffset(s.offset), Record: t.fileOffset(s.record), UID: s.uid}, nil
}

// Moves implements tiers.Memory.
func (t *Tier) Moves() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.moves
}

// PinPlace implements tiers.Memory.
func (t *Tier) PinPlace(at tiers.Place, length int64) (tiers.Pin, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return nil, err
	}
	s := t.stays[at.Generation]
	if s == nil || !within(at.Offset-t.fileOffset(s.offset), length, s.info.Size) {
		return nil, fmt.Errorf("%s: %d bytes at %d, generation %d: %w", t.name, length, at.Offset, at.Generation, tiers.ErrNotFound)
	}
	return t.hold(s), nil
}

// within reports whether length bytes from skip on lie in a block of size bytes.
func within(skip, length, size int64) bool {
	return skip >= 0 && length >= 0 && skip <= size && length <= size-skip
}

// Region implements tiers.Memory: the whole mapping, as File has it.
func (t *Tier) Region() []byte { return t.arena.Bytes() }
