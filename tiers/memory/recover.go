package memory

import (
	"cmp"
	"slices"
	"sync"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/internal/cpus"
	"cascadekv/tiers"
)

// found is a record that a walk of the arena came upon.
type found struct {
	cell  int64
	block blockRecord
	name  block.Name
	uid   uint64 // of a name: the block it points to

	space  string // of a layout
	seq    uint64
	layout block.Layout
}

// takeOver rebuilds slots and allocator from the records of an earlier process
// and returns how much memory was ready then; nobody else uses the tier yet. What does not verify is dropped.
// The ranges of wanted are kept, whatever lies there.
func (t *Tier) takeOver(wanted []tiers.HeldRange) (ready int64) {
	ready = loadReady(t.super)
	if ready < 0 || ready > int64(len(t.data)) || ready%arena.Page != 0 {
		ready = 0
	}
	blocks, names, layouts := t.walk(ready)
	blocks = t.verify(unique(blocks), ready)

	slots := make(map[uint64]*slot, len(blocks))
	used := make([]arena.Extent, 0, 2*len(blocks)+len(names))
	for _, b := range blocks {
		s := &slot{info: b.block.info, offset: b.block.offset, uid: b.block.uid, record: b.cell, next: b.block.version + 1}
		slots[s.uid] = s
		used = append(used, arena.Extent{Offset: b.cell, Size: blockRecordSize}, s.extent())
		t.nextUID = max(t.nextUID, s.uid+1)
	}
	names = newest(slices.DeleteFunc(names, func(f found) bool { return slots[f.uid] == nil }))
	for _, f := range names {
		used = append(used, arena.Extent{Offset: f.cell, Size: nameRecordLen(f.name)})
	}
	layoutsAt := len(used)
	for _, f := range layouts {
		used = append(used, arena.Extent{Offset: f.cell, Size: layoutRecordLen(f.space, f.layout)})
	}
	adopted, first := t.newAdoption(wanted, slots, ready), len(used)
	used = append(used, adopted.extra...)
	bad := map[int]bool{}
	for _, i := range t.mu.alloc.Adopt(ready, used) {
		bad[i] = true
	}
	t.attach(blocks, names, slots, used, bad)
	t.takeLayouts(layouts, func(i int) bool { return bad[layoutsAt+i] })
	t.adopt(adopted, func(extra int) bool { return !bad[first+extra] })
	for _, room := range t.mu.alloc.TakeLent() {
		t.renewLaterLocked(room)
	}
	t.sweepRecords(ready)
	return ready
}

// walk reads every record cell. The allocator's tags say where they are.
func (t *Tier) walk(ready int64) (blocks, names, layouts []found) {
	arena.WalkRecords(t.tags, ready, func(off, cell int64) {
		p := t.bytesOf(off, cell)
		if b, ok := readBlockRecord(p); ok {
			blocks = append(blocks, found{cell: off, block: b})
		} else if uid, n, ok := readName(p); ok {
			names = append(names, found{cell: off, uid: uid, name: n})
		} else if ns, seq, l, ok := readLayout(p); ok {
			layouts = append(layouts, found{cell: off, space: ns, seq: seq, layout: l})
		}
	})
	return blocks, names, layouts
}

// unique keeps one record of each block: moving a block may leave two.
func unique(blocks []found) []found {
	slices.SortFunc(blocks, func(x, y found) int { return cmp.Compare(x.block.uid, y.block.uid) })
	blocks = slices.CompactFunc(blocks, func(x, y found) bool { return x.block.uid == y.block.uid })
	seen := make(map[block.ID]bool, len(blocks))
	return slices.DeleteFunc(blocks, func(f found) bool {
		again := seen[f.block.info.ID]
		seen[f.block.info.ID] = true
		return again
	})
}

// newest keeps the youngest record of each name.
func newest(names []found) []found {
	type key struct{ ns, key string }
	best := make(map[key]uint64, len(names))
	for _, f := range names {
		k := key{f.name.Namespace, f.name.Key}
		best[k] = max(best[k], f.name.Seq)
	}
	return slices.DeleteFunc(names, func(f found) bool {
		k := key{f.name.Namespace, f.name.Key}
		if best[k] != f.name.Seq {
			return true
		}
		best[k]++ // a second record with the same Seq is a copy
		return false
	})
}

// verify keeps the blocks whose bytes match their checksum, all cores at work.
func (t *Tier) verify(blocks []found, ready int64) []found {
	ok := make([]bool, len(blocks))
	var wg sync.WaitGroup
	workers := cpus.Count()
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(blocks); i += workers {
				b := blocks[i].block
				ok[i] = b.offset+arena.RoundSize(b.info.Size) <= ready &&
					block.CRC(t.bytesOf(b.offset, b.info.Size)) == b.info.CRC
			}
		})
	}
	wg.Wait()
	kept := blocks[:0]
	for i, b := range blocks {
		if ok[i] {
			kept = append(kept, b)
		}
	}
	return kept
}

// attach puts the slots that the allocator accepted into the map, with their
// names. used lists, for each block, its record and its payload, then the names.
func (t *Tier) attach(blocks, names []found, slots map[uint64]*slot, used []arena.Extent, bad map[int]bool) {
	release := func(i int) {
		if !bad[i] {
			t.mu.alloc.Release(used[i].Offset, used[i].Size)
		}
	}
	for k, b := range blocks {
		s := slots[b.block.uid]
		if bad[2*k] || bad[2*k+1] {
			release(2 * k)
			if !bad[2*k+1] {
				t.freeLocked(s.offset, s.info.Size)
			}
			delete(slots, s.uid)
			continue
		}
		t.add(s)
	}
	for k, f := range names {
		i := 2*len(blocks) + k
		if s := slots[f.uid]; s != nil && !bad[i] {
			s.names.add(nameRef{f.cell, nameRecordLen(f.name), sumOf(f.name)})
		} else {
			release(i)
		}
	}
}

// sweepRecords retracts every record that no slot owns, so that none of them
// comes back to life in a reused cell.
func (t *Tier) sweepRecords(ready int64) {
	owned := make(map[int64]bool, 2*len(t.slots))
	for _, s := range t.slots {
		owned[s.record] = true
		for _, r := range s.names.refs {
			owned[r.offset] = true
		}
	}
	for _, r := range t.layouts {
		if r.size > 0 {
			owned[r.offset] = true
		}
	}
	arena.WalkRecords(t.tags, ready, func(off, cell int64) {
		if !owned[off] {
			retract(t.bytesOf(off, cell))
		}
	})
}

// Recover implements tiers.Tier.
func (t *Tier) Recover(fn func(tiers.Entry) error) error {
	t.mu.Lock()
	if err := t.usableLocked(); err != nil {
		t.mu.Unlock()
		return err
	}
	entries := make([]tiers.Entry, 0, len(t.slots))
	for _, s := range t.slots {
		entries = append(entries, tiers.Entry{Info: s.info, Names: t.namesLocked(s)})
	}
	t.mu.Unlock()
	for _, e := range entries {
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}
