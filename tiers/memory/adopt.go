package memory

import (
	"slices"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// adoption is of ranges that are kept for somebody outside at a take-over.
type adoption struct {
	wanted []tiers.HeldRange // offsets in the data area
	kept   []*keptRange      // for each; nil: it can not be kept
	extra  []arena.Extent    // ranges that are no block's
}

// keptRange is a range that is kept. Several of what is read may be one.
type keptRange struct {
	slot  *slot // the block that lies there, or stands for what does; nil: a client fills it
	extra int   // its place in adoption.extra; -1: a block's
}

// newAdoption sorts ranges by whether a block that was found lies just there.
func (t *Tier) newAdoption(wanted []tiers.HeldRange, slots map[uint64]*slot, ready int64) adoption {
	c := adoption{wanted: slices.Clone(wanted), kept: make([]*keptRange, len(wanted))}
	ranges := make(map[arena.Extent]*keptRange, len(wanted))
	for i := range c.wanted {
		c.wanted[i].Offset -= t.fileOffset(0)
		ranges[extentOf(c.wanted[i])] = nil
	}
	if len(wanted) > 0 { // there may be millions of slots, and ranges only at an upgrade
		for _, s := range slots {
			if _, is := ranges[s.extent()]; is && s.info.Size > 0 {
				ranges[s.extent()] = &keptRange{slot: s, extra: -1}
			}
		}
	}
	for i, w := range c.wanted {
		e := extentOf(w)
		r := ranges[e]
		switch {
		case e.Offset < 0 || e.Size < 0 || e.Offset > ready-e.Size:
			continue
		case r == nil || e.Size == 0: // nothing has room for any number
			r = &keptRange{extra: len(c.extra)}
			if !w.Slot {
				r.slot = &slot{info: block.Info{Size: w.Size, CRC: w.CRC}, offset: w.Offset, record: -1, gone: true}
			}
			ranges[e], c.extra = r, append(c.extra, e)
		case w.Slot || r.slot == nil:
			continue // nobody else may use what is filled
		}
		c.kept[i] = r
	}
	return c
}

func extentOf(w tiers.HeldRange) arena.Extent { return arena.Extent{Offset: w.Offset, Size: w.Size} }

// adopt makes what keeps the ranges. has reports which of extra the allocator has.
func (t *Tier) adopt(c adoption, has func(extra int) bool) {
	t.outside.kept = make([]tiers.KeptRange, len(c.wanted))
	for i, r := range c.kept {
		switch {
		case r == nil || r.extra >= 0 && !has(r.extra) || r.extra < 0 && t.slots[r.slot.info.ID] != r.slot:
		case r.slot == nil:
			t.outside.kept[i].Slot = t.fillLocked(c.wanted[i].Offset, c.wanted[i].Size)
		default:
			t.outside.kept[i].Pin = t.pinLocked(r.slot)
		}
	}
}
