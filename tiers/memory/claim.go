package memory

import (
	"slices"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// claims are ranges that are kept for somebody outside at a take-over.
type claims struct {
	wanted []tiers.Claim          // offsets in the data area
	blocks map[arena.Extent]*slot // that were found just where claims are
	extra  []arena.Extent         // of claims where there is none
	at     []int                  // for each claim its place in extra; -1: a block's, or none's
}

// newClaims sorts claims by whether a block that was found lies there. Several
// claims of what is read may be about the same range.
func (t *Tier) newClaims(wanted []tiers.Claim, slots map[uint64]*slot, ready int64) claims {
	c := claims{wanted: slices.Clone(wanted), at: make([]int, len(wanted))}
	for i := range c.wanted {
		c.wanted[i].Offset -= t.fileOffset(0)
	}
	c.blocks = slotsAt(c.wanted, slots)
	known := map[arena.Extent]int{}
	var filled []bool // by extra
	for i := range c.wanted {
		w := &c.wanted[i]
		e := extentOf(*w)
		c.at[i] = -1
		if c.blocks[e] != nil || e.Offset < 0 || e.Size < 0 || e.Offset > ready-e.Size {
			continue
		}
		at, again := known[e]
		again = again && e.Size > 0 // nothing has room for any number
		if again && (w.Slot || filled[at]) {
			continue // nobody else may use what is filled
		}
		if !again {
			at = len(c.extra)
			known[e] = at
			c.extra, filled = append(c.extra, e), append(filled, w.Slot)
		}
		c.at[i] = at
	}
	return c
}

func extentOf(w tiers.Claim) arena.Extent { return arena.Extent{Offset: w.Offset, Size: w.Size} }

// slotsAt finds the slots that have just the range of a claim; for other claims
// it has nil.
func slotsAt(wanted []tiers.Claim, slots map[uint64]*slot) map[arena.Extent]*slot {
	if len(wanted) == 0 {
		return nil // as at every open but an upgrade's: there may be millions of slots
	}
	at := make(map[arena.Extent]*slot, len(wanted))
	for _, w := range wanted {
		at[extentOf(w)] = nil
	}
	for _, s := range slots {
		e := arena.Extent{Offset: s.offset, Size: s.info.Size}
		if _, is := at[e]; is && e.Size > 0 {
			at[e] = s
		}
	}
	return at
}

// keep makes what keeps the ranges. kept reports which of extra the allocator
// has.
func (t *Tier) keep(c claims, kept func(extra int) bool) {
	alone := map[int]*slot{}
	t.claimed = make([]tiers.Claimed, len(c.wanted))
	for i, w := range c.wanted {
		s, at := c.blocks[extentOf(w)], c.at[i]
		switch {
		case s != nil && t.slots[s.info.ID] == s && !w.Slot:
			t.claimed[i].Pin = t.hold(s)
		case at < 0 || !kept(at):
		case w.Slot:
			t.pins++
			t.claimed[i].Slot = &filling{tier: t, offset: w.Offset, size: w.Size}
		default:
			if alone[at] == nil {
				alone[at] = &slot{info: block.Info{Size: w.Size, CRC: w.CRC}, offset: w.Offset, record: -1, gone: true}
			}
			t.claimed[i].Pin = t.hold(alone[at])
		}
	}
}

// Claimed implements tiers.Memory.
func (t *Tier) Claimed() []tiers.Claimed {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.claimed
	t.claimed = nil
	return c
}
