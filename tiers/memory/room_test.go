package memory

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// TestReserveWaitsForGrowth asks for most of the memory before it is ready.
func TestReserveWaitsForGrowth(t *testing.T) {
	tr, err := Open(Options{Name: "test", Bytes: 3 * growStep})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	s, err := tr.Reserve(2*growStep + growStep/2)
	if err != nil {
		t.Fatalf("error %v before growth has ended", err)
	}
	s.Abort()
}

// TestReserveReportsAFullTierWhenGrowthEnds holds growth open while there is
// no room.
func TestReserveReportsAFullTierWhenGrowthEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(tr *Tier, held tiers.Slot)
		want error
	}{
		"room comes": {func(tr *Tier, held tiers.Slot) {
			held.Abort()
			tr.mu.Lock()
			defer tr.mu.Unlock()
			tr.grew.Broadcast()
		}, nil},
		"no room comes": {func(tr *Tier, _ tiers.Slot) { tr.endGrowth(nil) }, tiers.ErrFull},
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := Open(Options{Name: "test", Bytes: MinBytes})
			if err != nil {
				t.Fatal(err)
			}
			if err := tr.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			held, err := tr.Reserve(MinBytes)
			if err != nil {
				t.Fatal(err)
			}
			tr.mu.Lock()
			tr.mu.growing = true
			tr.mu.Unlock()
			outcome := make(chan error)
			go func() {
				s, err := tr.Reserve(MinBytes)
				if err == nil {
					s.Abort()
				}
				outcome <- err
			}()
			c.end(tr, held)
			if err := <-outcome; !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			held.Abort()
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// fill puts blocks of one size until the tier is full.
func fill(t *testing.T, tr *Tier, size int) []tiers.Item {
	t.Helper()
	var items []tiers.Item
	for i := 0; ; i++ {
		it := testItem(byte(i), size)
		it.Names[0].Key = fmt.Sprint("key", i)
		if err := tr.Put(t.Context(), it); errors.Is(err, tiers.ErrFull) {
			return items
		} else if err != nil {
			t.Fatal(err)
		}
		items = append(items, it)
	}
}

// TestCompactionLeavesUsedBlocksAlone makes room out of every other block,
// pieces that are each too small.
func TestCompactionLeavesUsedBlocksAlone(t *testing.T) {
	const size = 64 << 10
	for name, c := range map[string]struct {
		pinEvery int  // of the blocks that stay, one in so many is used; 0: none
		outside  bool // held by somebody outside, otherwise pinned
		want     error
	}{
		"no pins":    {0, false, nil},
		"some pins":  {7, false, nil},
		"all pins":   {1, false, tiers.ErrFull},
		"some holds": {7, true, nil},
		"all holds":  {1, true, tiers.ErrFull},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.arena")
			tr := openAll(t, path, MinBytes)
			items := fill(t, tr, size)
			var kept []tiers.Item
			for i, it := range items {
				if i%2 == 1 {
					kept = append(kept, it)
				} else if err := tr.Evict(it.Info.ID); err != nil {
					t.Fatal(err)
				}
			}
			places := map[block.ID]tiers.Place{}
			for _, it := range kept {
				places[it.Info.ID] = placeOf(t, tr, it.Info.ID)
			}
			used := map[block.ID]int64{}
			for i, it := range kept {
				if c.pinEvery > 0 && i%c.pinEvery == 0 {
					used[it.Info.ID] = places[it.Info.ID].Offset
					if c.outside {
						continue
					}
					p, err := tr.Pin(it.Info.ID)
					if err != nil {
						t.Fatal(err)
					}
					defer p.Release()
				}
			}
			tr.Watch(func(offset int64) bool {
				// Whoever held something from here on would look at this word next.
				if word(tr.super[offMoving:]).Load() == 0 {
					t.Error("blocks may move unannounced")
				}
				return c.outside && slices.Contains(slices.Collect(maps.Values(used)), offset)
			})
			defer tr.Watch(nil)
			big := testItem(99, 4*size)
			if err := tr.Put(t.Context(), big); !errors.Is(err, c.want) {
				t.Fatalf("Put: error %v, want %v", err, c.want)
			} else if err == nil {
				kept = append(kept, big)
			}
			for id, off := range used {
				if now := placeOf(t, tr, id).Offset; now != off {
					t.Errorf("a block that is used moved from %d to %d", off, now)
				}
			}
			if word(tr.super[offMoving:]).Load() != 0 {
				t.Error("blocks are still said to be moved")
			}
			if moved := wantPlaces(t, tr, places); (moved > 0) != (c.want == nil) {
				t.Errorf("%d blocks moved", moved)
			}
			wantBytes(t, tr, kept)
			wantBytes(t, crashed(t, path), kept)
		})
	}
}

func placeOf(t *testing.T, tr *Tier, id block.ID) tiers.Place {
	t.Helper()
	at, err := tr.Place(id)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// wantPlaces tries the places that blocks had and counts those that moved.
func wantPlaces(t *testing.T, tr *Tier, places map[block.ID]tiers.Place) (moved int) {
	t.Helper()
	for id, old := range places {
		now := placeOf(t, tr, id)
		if now.Generation != old.Generation {
			t.Errorf("a move changed the generation from %d to %d", old.Generation, now.Generation)
		}
		p, err := tr.PinPlace(now, 1)
		if err != nil {
			t.Fatalf("PinPlace where Place says: %v", err)
		}
		p.Release()
		if now == old {
			continue
		}
		moved++
		if _, err := tr.PinPlace(old, 1); !errors.Is(err, tiers.ErrNotFound) {
			t.Errorf("PinPlace where the block was: %v", err)
		}
	}
	return moved
}

// TestPinPlaceOfAWithdrawnBlock: a pin keeps the memory, not the place.
func TestPinPlaceOfAWithdrawnBlock(t *testing.T) {
	tr := openAll(t, filepath.Join(t.TempDir(), "a.arena"), MinBytes)
	it := testItem(1, 9000)
	if err := tr.Put(t.Context(), it); err != nil {
		t.Fatal(err)
	}
	at := placeOf(t, tr, it.Info.ID)
	p, err := tr.PinPlace(at, 9000)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	tr.Region()[at.Offset+5] ^= 1
	if err := p.ReadInto(t.Context(), make([]byte, 9000)); !errors.Is(err, tiers.ErrCorrupt) {
		t.Fatal(err)
	}
	if _, err := tr.PinPlace(at, 9000); !errors.Is(err, tiers.ErrNotFound) {
		t.Errorf("PinPlace of a withdrawn block: %v", err)
	}
}

// crashed opens the arena as a kill -9 would leave it now.
func crashed(t *testing.T, path string) *Tier {
	t.Helper()
	image, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "copy.arena")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	return openAll(t, path, int64(len(image)))
}

func wantBytes(t *testing.T, tr *Tier, items []tiers.Item) {
	t.Helper()
	names := map[block.ID][]block.Name{}
	if err := tr.Recover(func(e tiers.Entry) error { names[e.Info.ID] = e.Names; return nil }); err != nil {
		t.Fatal(err)
	}
	for i, it := range items {
		p, err := tr.Pin(it.Info.ID)
		if err != nil {
			t.Errorf("block %d of %d: %v", i, len(items), err)
			continue
		}
		if !bytes.Equal(p.Bytes(), it.Data) {
			t.Errorf("block %d of %d has wrong bytes", i, len(items))
		}
		p.Release()
		if got := names[it.Info.ID]; len(got) != 1 || !sameName(got[0], it.Names[0]) {
			t.Errorf("block %d of %d has names %+v, want %+v", i, len(items), got, it.Names)
		}
	}
}

// TestFullOfPayloadStillCommits takes all room before the first record is
// written.
func TestFullOfPayloadStillCommits(t *testing.T) {
	for _, size := range []int{20_000, 64 << 10, 1 << 20, 3 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.arena")
			tr := openAll(t, path, MinBytes)
			var slots []tiers.Slot
			for {
				s, err := tr.Reserve(int64(size))
				if errors.Is(err, tiers.ErrFull) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				slots = append(slots, s)
			}
			if len(slots) == 0 {
				t.Fatal("nothing fits")
			}
			var items []tiers.Item
			for i, s := range slots {
				it := testItem(byte(i), size)
				it.Names[0].Key = fmt.Sprint("key", i)
				copy(s.Bytes(), it.Data)
				if err := s.Commit(it.Info, it.Names); err != nil {
					t.Fatalf("commit %d of %d: %v", i, len(slots), err)
				}
				items = append(items, it)
			}
			wantBytes(t, tr, items)
			wantBytes(t, crashed(t, path), items)
		})
	}
}

// TestRecordsAreReplacedNotRewritten: a renamed block's old record stays valid
// until the new one is, and a process that dies between the two leaves both.
func TestRecordsAreReplacedNotRewritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.arena")
	tr := openAll(t, path, MinBytes)
	it := testItem(1, 70_000)
	prov := it
	prov.Info.ID = block.Provisional(5)
	if err := tr.Put(t.Context(), prov); err != nil {
		t.Fatal(err)
	}
	first := tr.slots[prov.Info.ID].record
	if err := tr.Rename(prov.Info.ID, it.Info.ID); err != nil {
		t.Fatal(err)
	}
	s := tr.slots[it.Info.ID]
	if s.record == first {
		t.Fatal("the record was rewritten in place")
	}
	if _, ok := readBlockRecord(tr.bytesOf(first, blockRecordSize)); ok {
		t.Error("the old record is still valid")
	}
	wantBytes(t, crashed(t, path), []tiers.Item{it})

	old := blockRecord{uid: s.uid, info: prov.Info, offset: s.offset}
	old.write(tr.bytesOf(first, arena.RoundSize(blockRecordSize))) // as if the process died before the old one went
	again := crashed(t, path)
	if u := again.Usage(); u.Blocks != 1 {
		t.Errorf("%d blocks of two records of one", u.Blocks)
	}
	for id := range again.slots {
		if id != it.Info.ID && id != prov.Info.ID {
			t.Errorf("block %v was never put", id)
		}
		it.Info.ID = id
	}
	wantBytes(t, again, []tiers.Item{it})
}

// TestNothingMovesAtFirst: who dies while it moves blocks leaves word of that; the
// next one takes it back, or nobody could hold anything.
func TestNothingMovesAtFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.arena")
	tr := openAll(t, path, MinBytes)
	storeMoving(tr.super, true)
	if next := crashed(t, path); word(next.super[offMoving:]).Load() != 0 {
		t.Error("blocks are said to be moved by a process that is gone")
	}
}

// TestNoTwoRecordsOfABlockAreEqual: who reads a block by itself tells from its
// record whether it was away meanwhile.
func TestNoTwoRecordsOfABlockAreEqual(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.arena")
	tr := openAll(t, path, MinBytes)
	it := testItem(1, 70_000)
	if err := tr.Put(t.Context(), it); err != nil {
		t.Fatal(err)
	}
	want := func(tr *Tier, version uint32) {
		t.Helper()
		r, ok := readBlockRecord(tr.bytesOf(tr.slots[it.Info.ID].record, blockRecordSize))
		if !ok || r.version != version || r.info != it.Info {
			t.Errorf("record %+v, %v, want version %d", r, ok, version)
		}
	}
	rename := func(tr *Tier) {
		t.Helper()
		old := it.Info.ID
		it.Info.ID[0]++
		if err := tr.Rename(old, it.Info.ID); err != nil {
			t.Fatal(err)
		}
	}
	want(tr, 0)
	rename(tr)
	want(tr, 1)
	rename(tr)
	want(tr, 2) // in the cell of the first
	next := crashed(t, path)
	want(next, 2)
	rename(next)
	want(next, 3)
	next.writeRecordLocked(next.slots[it.Info.ID]) // in place, as without room for a second one
	want(next, 4)
}
