package memory

import (
	"slices"

	"cascadekv/tiers"
)

// outside is what others than this process hold. The space's mutex guards it.
type outside struct {
	held      func(offset int64) bool // of Watch, nil: nothing is
	lingering []*slot                 // no blocks any more, but held when they ceased to be
	kept      []tiers.KeptRange       // of Open
}

// Watch implements tiers.Memory.
func (t *Tier) Watch(held func(offset int64) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outside.held = held
}

// isHeldLocked reports whether somebody outside reads a slot's bytes.
func (t *Tier) isHeldLocked(s *slot) bool {
	return t.outside.held != nil && s.info.Size > 0 && t.outside.held(t.fileOffset(s.offset))
}

// Settle implements tiers.Memory.
func (t *Tier) Settle() (held int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleLocked()
	for _, s := range t.outside.lingering {
		held += s.info.Size
	}
	return held
}

// settleLocked frees what is held no longer, and reports whether anything was.
func (t *Tier) settleLocked() (freed bool) {
	n := len(t.outside.lingering)
	t.outside.lingering = slices.DeleteFunc(t.outside.lingering, func(s *slot) bool {
		held := t.isHeldLocked(s)
		if !held {
			t.freeLocked(s.offset, s.info.Size)
		}
		return !held
	})
	return len(t.outside.lingering) < n
}

// HeldRanges implements tiers.Memory.
func (t *Tier) HeldRanges() (held []tiers.HeldRange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	add := func(s *slot) {
		if t.isHeldLocked(s) {
			held = append(held, tiers.HeldRange{Offset: t.fileOffset(s.offset), Size: s.info.Size, CRC: s.info.CRC})
		}
	}
	for _, s := range t.slots {
		add(s)
	}
	for _, s := range t.outside.lingering {
		add(s)
	}
	return held
}

// KeptRanges implements tiers.Memory.
func (t *Tier) KeptRanges() []tiers.KeptRange {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.outside.kept
	t.outside.kept = nil
	return c
}
