package memory

import (
	"slices"

	"cascadekv/tiers"
)

// Watch implements tiers.Memory.
func (t *Tier) Watch(held func(offset int64) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = held
}

// isHeld reports whether somebody outside reads a slot's bytes. The caller holds
// the mutex.
func (t *Tier) isHeld(s *slot) bool {
	return t.held != nil && s.info.Size > 0 && t.held(t.fileOffset(s.offset))
}

// Settle implements tiers.Memory.
func (t *Tier) Settle() (held int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settle()
	for _, s := range t.lingering {
		held += s.info.Size
	}
	return held
}

// settle frees what is held no longer, and reports whether anything was. The caller
// holds the mutex.
func (t *Tier) settle() (freed bool) {
	n := len(t.lingering)
	t.lingering = slices.DeleteFunc(t.lingering, func(s *slot) bool {
		if t.isHeld(s) {
			return false
		}
		t.free(s.offset, s.info.Size)
		return true
	})
	return len(t.lingering) < n
}

// Claims implements tiers.Memory.
func (t *Tier) Claims() []tiers.Claim {
	t.mu.Lock()
	defer t.mu.Unlock()
	var claims []tiers.Claim
	add := func(s *slot) {
		if t.isHeld(s) {
			claims = append(claims, tiers.Claim{Offset: t.fileOffset(s.offset), Size: s.info.Size, CRC: s.info.CRC})
		}
	}
	for _, s := range t.slots {
		add(s)
	}
	for _, s := range t.lingering {
		add(s)
	}
	return claims
}
