package tiertest

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

func placeOf(t *testing.T, m tiers.Memory, id block.ID) tiers.Place {
	t.Helper()
	at, err := m.Place(id)
	if err != nil {
		t.Fatalf("Place of %v: %v", id, err)
	}
	return at
}

func pinPlace(t *testing.T, m tiers.Memory, at tiers.Place, it tiers.Item) {
	t.Helper()
	p, err := m.PinPlace(at, it.Info.Size)
	if err != nil {
		t.Fatalf("PinPlace of %d bytes at %+v: %v", it.Info.Size, at, err)
	}
	defer p.Release()
	samePin(t, p, it)
	if p.Offset() != at.Offset {
		t.Errorf("block at %d of the region, %d of the file", at.Offset, p.Offset())
	}
}

func wantNoPlace(t *testing.T, m tiers.Memory, what string, at tiers.Place, length int64) {
	t.Helper()
	p, err := m.PinPlace(at, length)
	if err == nil {
		p.Release()
	}
	wantErr(t, "PinPlace "+what, err, tiers.ErrNotFound)
}

// places tries that a block is found by its place for as long as it stays, and
// only by it.
func (c Config) places(t *testing.T) {
	tr := c.fresh(t, roomy)
	m := tr.mem(t)
	seen := map[uint64]bool{}
	for i, size := range sizes {
		it := item(uint64(i), size)
		put(t, tr, it)
		at := placeOf(t, m, it.Info.ID)
		if at.Generation == 0 || seen[at.Generation] {
			t.Fatalf("generation %d twice, or zero", at.Generation)
		}
		seen[at.Generation] = true
		if all := m.Region(); all != nil && !bytes.Equal(all[at.Offset:][:size], it.Data) {
			t.Errorf("%d bytes: the region holds others at %d", size, at.Offset)
		}
		pinPlace(t, m, at, it)
		if p, err := m.PinPlace(at, size/2); err != nil {
			t.Errorf("PinPlace of a part: %v", err)
		} else {
			p.Release()
		}
		wantNoPlace(t, m, "of more than the block", at, size+1)
		wantNoPlace(t, m, "of less than nothing", at, -1)
		wantNoPlace(t, m, "elsewhere", tiers.Place{Offset: at.Offset + 64, Generation: at.Generation}, size)
		wantNoPlace(t, m, "of another generation", tiers.Place{Offset: at.Offset, Generation: at.Generation + 1}, size)
	}
	_, err := m.Place(item(99, 5).Info.ID)
	wantErr(t, "Place of an absent block", err, tiers.ErrNotFound)
	wantNoPlace(t, m, "of the zero place", tiers.Place{}, 0)
}

// stays tries that every stay of a block has a generation of its own, which
// Rename keeps, and that a pin by place is a pin.
func (c Config) stays(t *testing.T) {
	tr := c.fresh(t, roomy)
	m := tr.mem(t)
	it := item(1, 42<<10)
	put(t, tr, it)
	first := placeOf(t, m, it.Info.ID)
	p, err := m.PinPlace(first, it.Info.Size)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Evict of a block pinned by place", tr.Evict(it.Info.ID), tiers.ErrPinned)
	p.Release()
	if err := tr.Evict(it.Info.ID); err != nil {
		t.Fatal(err)
	}
	wantNoPlace(t, m, "of an evicted block", first, it.Info.Size)
	put(t, tr, it)
	if again := placeOf(t, m, it.Info.ID); again.Generation == first.Generation {
		t.Errorf("two stays of a block, both at %+v", again)
	}
	wantNoPlace(t, m, "of the former stay", first, it.Info.Size)

	named := item(2, 9000)
	early := named
	early.Info.ID = block.Provisional(5)
	commit(t, m, early)
	before := placeOf(t, m, early.Info.ID)
	if err := m.Rename(early.Info.ID, named.Info.ID); err != nil {
		t.Fatal(err)
	}
	pinPlace(t, m, before, named)
	if after := placeOf(t, m, named.Info.ID); after != before {
		t.Errorf("Rename changed the place from %+v to %+v", before, after)
	}
}

// placesAfterCrash tries that no place of an earlier process names another
// block in the next one. The last block is gone when the process dies: a tier
// that counts its blocks would give its number to the next.
func (c Config) placesAfterCrash(t *testing.T) {
	tr := c.fresh(t, roomy)
	old := map[tiers.Place]tiers.Item{}
	for round := range 4 {
		m := tr.mem(t)
		kept, gone := item(uint64(2*round), 9000), item(uint64(2*round+1), 9000)
		put(t, tr, kept, gone)
		for _, it := range []tiers.Item{kept, gone} {
			at := placeOf(t, m, it.Info.ID)
			if _, ok := old[at]; ok {
				t.Fatalf("%+v was another block's before", at)
			}
			old[at] = it
		}
		if err := tr.Evict(gone.Info.ID); err != nil {
			t.Fatal(err)
		}
		if round%2 == 0 && c.Persistent {
			tr = c.crashed(t, tr, roomy)
		} else {
			tr = c.reopened(t, tr, roomy)
		}
		for at, it := range old {
			if p, err := tr.mem(t).PinPlace(at, 9000); err == nil {
				samePin(t, p, it)
				p.Release()
			} else {
				wantErr(t, "PinPlace of an earlier process", err, tiers.ErrNotFound)
			}
		}
		if c.Persistent {
			pinPlace(t, tr.mem(t), placeOf(t, tr.mem(t), kept.Info.ID), kept)
		}
	}
}

// placesUnderLoad reads by place while blocks come and go: what PinPlace gives
// out is the block whose place it was.
func (c Config) placesUnderLoad(t *testing.T) {
	tr := c.fresh(t, roomy)
	m := tr.mem(t)
	items := someItems(16)
	var wg sync.WaitGroup
	var done atomic.Int64
	for w := range 3 {
		wg.Go(func() { worker(t, tr.Tier, items, uint64(w), 300, &done) })
	}
	for w := range 3 {
		wg.Go(func() {
			for i := range 600 {
				it := items[(i*7+w)%len(items)]
				at, err := m.Place(it.Info.ID)
				if err != nil {
					continue
				}
				p, err := m.PinPlace(at, it.Info.Size)
				if errors.Is(err, tiers.ErrNotFound) {
					continue
				}
				if err != nil {
					t.Errorf("PinPlace: %v", err)
					return
				}
				if p.Info() != it.Info || !holds(p, it) {
					t.Errorf("another block at the place of %v", it.Info.ID)
				}
				p.Release()
			}
		})
	}
	wg.Wait()
}
