package memory

import (
	"slices"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// claims are ranges that are kept for somebody outside at a take-over.
type claims struct {
	wanted []tiers.Claim  // offsets in the data area
	extra  []arena.Extent // of those of them that no block of the tier has
	at     []int          // for each claim its place in extra; -1: a block's, or none's
}

// newClaims sorts claims by whether a block that was found lies there. Several
// claims of what is read may be about the same range.
func (t *Tier) newClaims(wanted []tiers.Claim, slots map[uint64]*slot, ready int64) claims {
	c := claims{wanted: slices.Clone(wanted), at: make([]int, len(wanted))}
	blocks := make(map[int64]int64, len(slots))
	for _, s := range slots {
		if s.info.Size > 0 {
			blocks[s.offset] = s.info.Size
		}
	}
	known := map[arena.Extent]int{}
	var filled []bool // by extra
	for i := range c.wanted {
		w := &c.wanted[i]
		w.Offset -= t.fileOffset(0)
		e := arena.Extent{Offset: w.Offset, Size: w.Size}
		c.at[i] = -1
		if size, is := blocks[e.Offset]; is && size == e.Size || e.Offset < 0 || e.Size < 0 || e.Offset > ready-e.Size {
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

// keep makes what keeps the ranges. kept tells which of extra the allocator
// has.
func (t *Tier) keep(c claims, kept func(extra int) bool) {
	blocks := make(map[int64]*slot, len(t.slots))
	for _, s := range t.slots {
		if s.info.Size > 0 {
			blocks[s.offset] = s
		}
	}
	alone := map[int]*slot{}
	t.claimed = make([]tiers.Claimed, len(c.wanted))
	for i, w := range c.wanted {
		s, at := blocks[w.Offset], c.at[i]
		switch {
		case at < 0 && s != nil && s.info.Size == w.Size && !w.Slot:
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

// Claimed implements tiers.Claiming.
func (t *Tier) Claimed() []tiers.Claimed {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.claimed
	t.claimed = nil
	return c
}
