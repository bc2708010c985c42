package memory

import (
	"bytes"
	"path/filepath"
	"testing"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// TestClaims takes an arena over while somebody reads and fills parts of it: what
// is claimed keeps its bytes and its place whatever is stored beside it, and is
// room again when it is given back.
func TestClaims(t *testing.T) {
	const size = 8 << 20
	for _, n := range []int{0, 100, 3000, 20 << 10, 700 << 10} {
		path := filepath.Join(t.TempDir(), "arena")
		old := openAll(t, path, size)
		named, nameless := testItem(1, n), testItem(2, max(n, 1))
		nameless.Names = nil
		if err := old.Put(t.Context(), named, nameless); err != nil {
			t.Fatal(err)
		}
		place := func(id block.ID) int64 {
			at, err := old.Place(id)
			if err != nil {
				t.Fatal(err)
			}
			return at.Offset
		}
		room := func() tiers.Slot { // that no record tells of
			s, err := old.Reserve(int64(n))
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		view, stage := room(), room()
		copy(view.Bytes(), pattern(3, n))
		copy(stage.Bytes(), pattern(4, n))
		offset := func(s tiers.Slot) int64 { return s.Offset() }
		claims := []tiers.HeldRange{
			{Offset: place(named.Info.ID), Size: int64(n), CRC: named.Info.CRC},
			{Offset: place(nameless.Info.ID), Size: nameless.Info.Size, CRC: nameless.Info.CRC},
			{Offset: offset(view), Size: int64(n), CRC: block.CRC(pattern(3, n))},
			{Offset: offset(view), Size: int64(n), CRC: block.CRC(pattern(3, n))},
			{Offset: offset(stage), Size: int64(n), Slot: true},
			{Offset: size - 100, Size: 4096},
			{Offset: place(nameless.Info.ID), Size: nameless.Info.Size, Slot: true},
		}
		want := [][]byte{named.Data, nameless.Data, pattern(3, n), pattern(3, n), pattern(4, n)}
		old.stopForTest(t)

		tr, err := Open(Options{Name: "test", Path: path, Bytes: size, Held: claims})
		if err != nil {
			t.Fatal(err)
		}
		kept := tr.KeptRanges()
		if len(kept) != len(claims) || kept[5] != (tiers.KeptRange{}) || kept[6] != (tiers.KeptRange{}) {
			t.Fatalf("%d bytes: kept %v", n, kept)
		}
		if again := tr.KeptRanges(); again != nil {
			t.Fatal("claims are handed over twice")
		}
		if err := tr.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Everything else is filled, so that what is not kept would be overwritten.
		var fill []tiers.Slot
		for each := int64(256 << 10); each > 0; each /= 2 {
			for {
				s, err := tr.Reserve(each)
				if err != nil {
					break
				}
				for i := range s.Bytes() {
					s.Bytes()[i] = 0xee
				}
				fill = append(fill, s)
			}
		}
		for i, w := range want {
			var got []byte
			var at int64
			if i == 4 {
				got, at = kept[i].Slot.Bytes(), kept[i].Slot.Offset()
			} else {
				got, at = kept[i].Pin.Bytes(), kept[i].Pin.Offset()
			}
			if !bytes.Equal(got, w) || n > 0 && at != claims[i].Offset {
				t.Errorf("%d bytes: claim %d at %d has changed or lies at %d", n, i, claims[i].Offset, at)
			}
		}
		for _, s := range fill {
			s.Abort()
		}
		info := block.Info{ID: block.Sum(block.Bits128, want[4], []byte("filled")), Size: int64(n), CRC: block.CRC(want[4])}
		if err := kept[4].Slot.Commit(info, nil); err != nil {
			t.Errorf("%d bytes: commit of a claimed slot: %v", n, err)
		}
		before := tr.Usage().Used
		for _, k := range kept[:4] {
			k.Pin.Release()
		}
		if back := before - tr.Usage().Used; back != arena.RoundSize(int64(n)) { // the view's alone: blocks stay
			t.Errorf("%d bytes: %d are given back, want %d", n, back, arena.RoundSize(int64(n)))
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}
}

// stopForTest unlocks the file as the end of the process does, pins or not.
func (t *Tier) stopForTest(tb testing.TB) {
	tb.Helper()
	t.mu.Lock()
	t.mu.closed = true
	t.mu.Unlock()
	if err := t.arena.Close(); err != nil {
		tb.Fatal(err)
	}
}
