package segment

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

func always([]block.ID) bool { return true }

// spill spills the next file.
func spill(t *testing.T, s *opened) Spilled {
	t.Helper()
	is, ok, err := s.Spill(t.Context(), always)
	if err != nil || !ok {
		t.Fatalf("Spill: %+v, %v, %v", is, ok, err)
	}
	return is
}

func reload(t *testing.T, s *opened, is Spilled, x *entries) []tiers.Entry {
	t.Helper()
	got, err := s.Reload(t.Context(), is.Part, is.Number, x.counts)
	must(t, err)
	return got
}

// judge says of all names without a block whether they hide others.
func judge(s *opened, hides bool) {
	s.Hides(func(names []block.Name) []bool { return slices.Repeat([]bool{hides}, len(names)) })
}

// wantPlaced reads blocks where the indexer has them.
func wantPlaced(t *testing.T, s *opened, x *entries, items ...tiers.Item) {
	t.Helper()
	for _, it := range items {
		at, ok := x.find(it.Info.ID)
		got := make([]byte, it.Info.Size)
		err := s.ReadSegment(t.Context(), at.At, it.Info, got)
		if !ok || err != nil || !bytes.Equal(got, it.Data) {
			t.Errorf("block %v: indexed: %v, error %v", it.Info.ID, ok, err)
		}
	}
}

// pairs are options of segments of two blocks each.
func pairs(dir string, incarnation uint64) Options {
	o := testOptions(dir, incarnation)
	o.SegmentBlocks = 2
	return o
}

// putPairs puts n blocks, with a name each, from number on.
func putPairs(t *testing.T, s *opened, from, n int) (items []tiers.Item) {
	t.Helper()
	for i := from; i < from+n; i++ {
		it := testItem(uint64(i), 9000, testName(fmt.Sprint(i), uint64(10*i+10)))
		put(t, s, it)
		items = append(items, it)
	}
	return items
}

func link(t *testing.T, s *opened, it tiers.Item, key string, seq uint64) {
	t.Helper()
	must(t, s.Link(it.Info.ID, testName(key, seq)))
	must(t, s.Sync(t.Context()))
}

func unlink(t *testing.T, s *opened, key string, seq uint64) {
	t.Helper()
	must(t, s.Unlink(block.ID{}, testName(key, seq)))
	must(t, s.Sync(t.Context()))
}

// TestSpill: nothing of a spilled file is in memory, its blocks are read by their
// places, the space it takes counts, and when it is reloaded what counted then is
// there again, and no more.
func TestSpill(t *testing.T) {
	x := newEntries()
	s := openIndexed(t, pairs(t.TempDir(), 1), x)
	items := putPairs(t, s, 0, 4) // files 0 and 1
	more := putPairs(t, s, 4, 1)  // file 2
	link(t, s, items[0], "alias", 1000)
	before, stored := s.Usage(), s.Encoded().Stored
	is := spill(t, s)
	if is.Number != 0 || is.Blocks != 2 || is.Payload != 18000 || is.Size == 0 {
		t.Errorf("spilled %+v", is)
	}
	if len(s.Store.blocks) != 3 || len(s.Store.names) != 4 {
		t.Errorf("%d blocks and %d names are in memory", len(s.Store.blocks), len(s.Store.names))
	}
	if got := s.Usage(); got != before || s.Encoded().Stored != stored {
		t.Errorf("usage %+v, was %+v", got, before)
	}
	if got := s.SpilledFiles(); !slices.Equal(got, []Spilled{is}) {
		t.Errorf("spilled files %+v", got)
	}
	_, err := s.Pin(items[0].Info.ID)
	wantErr(t, "Pin", err, tiers.ErrNotFound)
	wantPlaced(t, s, x, append(items, more...)...)

	again := testItem(50, 9000, testName("1", 5000)) // another block of that name
	put(t, s, again)
	unlink(t, s, "0", 6000)
	got := reload(t, s, is, x)
	if len(got) != 2 || got[0].Info != items[0].Info || got[1].Info != items[1].Info || len(got[0].Names)+len(got[1].Names) != 0 {
		t.Errorf("reloaded %+v", got)
	}
	wantBytes(t, s, append(items, again)...)
	if got := s.Usage(); got.Blocks != 6 || len(s.SpilledFiles()) != 0 {
		t.Errorf("usage %+v, spilled %+v", got, s.SpilledFiles())
	}
	if is := spill(t, s); is.Number != 1 {
		t.Errorf("a reloaded file was spilled again: %+v", is)
	}
	if got := reload(t, s, s.SpilledFiles()[0], x); len(got) != 2 || len(got[0].Names) != 1 || got[0].Names[0].Key != "2" {
		t.Errorf("reloaded %+v", got)
	}
	_, err = s.Reload(t.Context(), is.Part, 1, x.counts)
	wantErr(t, "another Reload", err, tiers.ErrNotFound)
}

// TestKeeps: what was evicted from a file is not there, and what is let go of is there throughout.
func TestKeeps(t *testing.T) {
	x := newEntries()
	s := openIndexed(t, pairs(t.TempDir(), 1), x)
	items := putPairs(t, s, 0, 4)
	var ids []block.ID
	var in []format.FileID
	for _, it := range items {
		at, err := s.Segment(it.Info.ID)
		must(t, err)
		file, _ := format.ParsePath(at.Path)
		ids, in = append(ids, it.Info.ID), append(in, file)
	}
	want := func(when string, want ...bool) {
		t.Helper()
		if got := s.Keeps(ids, in); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	want("at first", true, true, true, true)
	must(t, s.Evict(ids[3]))
	want("evicted", true, true, true, false)
	is, ok, err := s.Spill(t.Context(), func([]block.ID) bool {
		want("while a file is let go of", true, true, true, false)
		return true
	})
	if err != nil || !ok {
		t.Fatalf("Spill: %v, %v", ok, err)
	}
	want("spilled", true, true, true, false)
	reload(t, s, is, x)
	want("reloaded", true, true, true, false)
	if got := s.Keeps(ids[:1], in[2:3]); got[0] {
		t.Error("a block is kept in a file in which it is not")
	}
}

// TestSpillRefused: files that are in use, that take frames, that the indexer does not
// have or that the caller does not let go stay as they are.
func TestSpillRefused(t *testing.T) {
	x := newEntries()
	s := openIndexed(t, pairs(t.TempDir(), 1), x)
	x.failed = errors.New("sick")
	items := putPairs(t, s, 0, 2) // file 0, which is never spilled
	x.failed = nil
	items = append(items, putPairs(t, s, 2, 7)...) // 1, 2, 3 and the current one
	ref, err := s.Pin(items[2].Info.ID)
	must(t, err)
	never := func([]block.ID) bool { return false }
	for i, want := range []uint64{2, 3, 2} {
		is, ok, err := s.Spill(t.Context(), never)
		if err != nil || ok || is.Number != want || is.Blocks != 2 {
			t.Errorf("turn %d: %+v, %v, %v", i, is, ok, err)
		}
	}
	wantBytes(t, s, items...)
	ref.Release()
	is, ok, err := s.Spill(t.Context(), func(ids []block.ID) bool { // a reader comes in between
		slices.SortFunc(ids, func(a, b block.ID) int { return bytes.Compare(a[:], b[:]) })
		want := []block.ID{items[2].Info.ID, items[3].Info.ID}
		slices.SortFunc(want, func(a, b block.ID) int { return bytes.Compare(a[:], b[:]) })
		if !slices.Equal(ids, want) {
			t.Errorf("asked for %v, want %v", ids, want)
		}
		ref, err = s.Pin(items[3].Info.ID)
		return err == nil
	})
	if err != nil || ok || is.Number != 1 {
		t.Errorf("of a file in use: %+v, %v, %v", is, ok, err)
	}
	wantBytes(t, s, items...)
	ref.Release()
	for _, want := range []uint64{1, 3, 2} { // refused never, once and twice
		if is := spill(t, s); is.Number != want {
			t.Errorf("spilled %+v, want %d", is, want)
		}
	}
	if is, ok, err := s.Spill(t.Context(), always); ok || err != nil || is != (Spilled{}) {
		t.Errorf("nothing is left to spill: %+v, %v, %v", is, ok, err)
	}
	wantBytes(t, s, items[0], items[1], items[8])
	wantPlaced(t, s, x, items[2:8]...)
}

// TestSpillKeepsAliases: a name of a spilled block that lies in another file goes along
// when that is merged, whether it was there before or came later.
func TestSpillKeepsAliases(t *testing.T) {
	dir := t.TempDir()
	x := newEntries()
	s := openIndexed(t, pairs(dir, 1), x)
	first := putPairs(t, s, 0, 2)
	second := putPairs(t, s, 2, 1)
	link(t, s, first[0], "before", 1000)
	spill(t, s)
	must(t, s.LinkSpilled(first[1].Info.ID, testName("after", 1010)))
	must(t, s.Sync(t.Context()))
	second = append(second, putPairs(t, s, 3, 2)...)
	for _, it := range second[:2] {
		must(t, s.Evict(it.Info.ID))
	}
	if m := merged(t, s, 0); m.Segments != 1 {
		t.Errorf("merged %+v", m)
	}
	wantFiles(t, dir, segmentPath(1, 0), segmentPath(1, 2), segmentPath(1, 3))
	judge(s, true) // as if older records of them were elsewhere
	must(t, s.Sync(t.Context()))
	newest := x.newest()
	if newest["before"].ID != first[0].Info.ID || newest["after"].ID != first[1].Info.ID {
		t.Errorf("the index has %v", slices.Collect(maps.Keys(newest)))
	}
	closeStore(t, s)

	s = openIndexed(t, pairs(dir, 2), newEntries())
	if s.names["before"] != first[0].Info.ID || s.names["after"] != first[1].Info.ID {
		t.Errorf("names %v", s.names)
	}
	wantBytes(t, s, first...)
}

// TestSpillAndDrops: a withdrawal is kept while a file with older records is spilled,
// also after a restart, and goes when there is none.
func TestSpillAndDrops(t *testing.T) {
	for name, restart := range map[string]bool{"same run": false, "next run": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			x := newEntries()
			s := openIndexed(t, pairs(dir, 1), x)
			kept, other := putPairs(t, s, 0, 2), putPairs(t, s, 2, 1)
			is := spill(t, s)
			unlink(t, s, "0", 1000)
			other = append(other, putPairs(t, s, 3, 2)...)
			if restart {
				closeStore(t, s)
				x.unmark(is)
				s = openIndexed(t, pairs(dir, 2), x)
			}
			judge(s, false) // nothing of another rank is withdrawn
			for _, it := range other[:2] {
				must(t, s.Evict(it.Info.ID))
			}
			merged(t, s, 0)
			settleDown(s)
			if r := x.newest()["0"]; !r.Dropped || s.Store.names[nameKey{"ns", "0"}] == nil {
				t.Errorf("the withdrawal is gone: %+v", r)
			}
			reload(t, s, is, x)
			for _, it := range kept {
				must(t, s.Evict(it.Info.ID))
			}
			judge(s, false)
			settleDown(s)
			merged(t, s, 0) // moves the withdrawal, for file 0 may be there yet
			settleDown(s)
			judge(s, false)
			settleDown(s)
			if r, ok := x.newest()["0"]; ok {
				t.Errorf("it is there for nothing: %+v; files %v", r, segments(t, dir))
			}
			wantBytes(t, s, other[2])
		})
	}
}

// TestSpillRestart: the next run does not read what the indexer has, whether it was
// spilled or not, gives it nothing, and reads the rest; without an indexer, or with an
// empty one, all is recovered.
func TestSpillRestart(t *testing.T) {
	dir := t.TempDir()
	x := newEntries()
	s := openIndexed(t, pairs(dir, 1), x)
	items := putPairs(t, s, 0, 5)
	link(t, s, items[0], "alias", 1000)
	want := []Spilled{spill(t, s)}
	closeStore(t, s)
	usage := s.Usage()
	if n := int64(len(readFile(t, dir, segmentPath(1, 0)))); n != want[0].Size {
		t.Errorf("the file has %d bytes, spilled %+v", n, want[0])
	}

	fs := vfstest.NewFault(vfs.OS{})
	fs.Add(vfstest.Rule{Op: vfs.OpOpen, Path: "agg_rank003", Err: vfs.ErrIO})
	o := pairs(dir, 2)
	o.FS = fs
	wrote := x.wrote
	s = openIndexed(t, o, x)
	if len(s.SpilledFiles()) != 3 || len(s.Skipped()) != 0 || len(s.blocks) != 0 || s.Usage() != usage || x.wrote != wrote {
		t.Errorf("spilled files %+v, skipped %v, usage %+v, %d blocks handed over, %d frames indexed anew", s.SpilledFiles(), s.Skipped(), s.Usage(), len(s.blocks), x.wrote-wrote)
	}
	closeStore(t, s)

	x.unmark(want...)
	fs.Clear()
	fs.Add(vfstest.Rule{Op: vfs.OpOpen, Path: "agg_rank003_000000", Err: vfs.ErrIO})
	o = pairs(dir, 3)
	o.FS = fs
	s = openIndexed(t, o, x)
	want[0].Earlier = true
	if got := s.SpilledFiles(); !slices.Equal(got, want) || len(s.Skipped()) != 0 {
		t.Errorf("spilled files %+v, skipped %v", got, s.Skipped())
	}
	if got := s.Usage(); got != usage || len(s.blocks) != 3 || len(s.Store.blocks) != 3 {
		t.Errorf("usage %+v, want %+v; %d blocks handed over", got, usage, len(s.blocks))
	}
	fs.Clear()
	wantPlaced(t, s, x, items...)
	wantBytes(t, s, items[2:]...)
	if is := spill(t, s); is.Number != 1 || is.Part.Incarnation != 1 { // what was read at the start can be spilled
		t.Errorf("spilled %+v", is)
	}
	if got := reload(t, s, want[0], x); len(got) != 2 {
		t.Errorf("reloaded %+v", got)
	}
	wantBytes(t, s, items[0], items[1])
	closeStore(t, s)

	for i, x := range []*entries{nil, newEntries()} {
		var indexer Indexer
		if x != nil {
			indexer = x
		}
		s = openIndexed(t, pairs(dir, uint64(4+i)), indexer)
		wantBytes(t, s, items...)
		if s.names["alias"] != items[0].Info.ID || len(s.SpilledFiles()) != 0 {
			t.Errorf("names %v", s.names)
		}
		closeStore(t, s)
		if x != nil && (len(x.newest()) != 6 || len(x.files) != 3) {
			t.Errorf("the indexer has %d files", len(x.files))
		}
	}
}

// TestSpillMissing: of a spilled file that somebody removed the indexer hears, and no
// blocks are returned.
func TestSpillMissing(t *testing.T) {
	dir := t.TempDir()
	x := newEntries()
	s := openIndexed(t, pairs(dir, 1), x)
	items := putPairs(t, s, 0, 5)
	spill(t, s)
	must(t, os.Remove(filepath.Join(dir, segmentPath(1, 0))))
	if n := missed(t, s); n != 0 {
		t.Errorf("%d blocks are missing", n)
	}
	settleDown(s)
	id := format.FileID{Rank: 3, Incarnation: 1}
	if !slices.Equal(x.gone, []format.FileID{id}) || len(s.SpilledFiles()) != 0 || s.Usage().Blocks != 3 {
		t.Errorf("gone %v, spilled %v, usage %+v", x.gone, s.SpilledFiles(), s.Usage())
	}
	wantBytes(t, s, items[2:]...)
	for _, it := range items[2:4] {
		must(t, s.Evict(it.Info.ID))
	}
	settleDown(s)
	if id.Number = 1; !slices.Contains(x.gone, id) {
		t.Errorf("an unlinked file is not gone: %v", x.gone)
	}
}

// TestSpillLayouts: the indexer is given LAYOUT records, also those that a frame got of
// itself.
func TestSpillLayouts(t *testing.T) {
	x := newEntries()
	s := openIndexed(t, pairs(t.TempDir(), 1), x)
	must(t, s.SetLayout("ns", 1, block.Layout{Tokens: 16}))
	putPairs(t, s, 0, 3)
	for id, f := range x.files {
		if f.layouts != 1 {
			t.Errorf("%s: %d layouts", id.Path(), f.layouts)
		}
	}
}

// TestSpillOverwritten: a name whose older record is spilled does not come back with it
// when its own block is evicted.
func TestSpillOverwritten(t *testing.T) {
	for name, restart := range map[string]bool{"same run": false, "next run": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			x := newEntries()
			s := openIndexed(t, pairs(dir, 1), x)
			old := putPairs(t, s, 0, 2)
			fresh := testItem(10, 9000, testName("0", 1000))
			put(t, s, fresh, testItem(11, 9000))
			put(t, s, testItem(12, 9000))
			is := spill(t, s)
			if restart {
				closeStore(t, s)
				x.unmark(is)
				s = openIndexed(t, pairs(dir, 2), x)
			}
			must(t, s.Evict(fresh.Info.ID))
			must(t, s.Evict(testItem(11, 9000).Info.ID))
			settleDown(s)
			merged(t, s, 0)
			closeStore(t, s)
			s = openIndexed(t, pairs(dir, 3), newEntries())
			if id, ok := s.names["0"]; ok && id == old[0].Info.ID {
				t.Error("an older block of the name is back")
			}
		})
	}
}

// TestSpillKeepsReadAliases: the same of a name that was read at a start.
func TestSpillKeepsReadAliases(t *testing.T) {
	dir := t.TempDir()
	x := newEntries()
	s := openIndexed(t, pairs(dir, 1), x)
	first, second := putPairs(t, s, 0, 2), putPairs(t, s, 2, 1)
	link(t, s, first[0], "alias", 1000)
	second = append(second, putPairs(t, s, 3, 1)...)
	is := spill(t, s)
	closeStore(t, s)
	x.unmark(is)
	s = openIndexed(t, pairs(dir, 2), x)
	for _, it := range second {
		must(t, s.Evict(it.Info.ID))
	}
	judge(s, true)
	must(t, s.Sync(t.Context()))
	merged(t, s, 0)
	if r := x.newest()["alias"]; r.Dropped || r.ID != first[0].Info.ID {
		t.Errorf("the alias is %+v", r)
	}
}

// TestSpillNewestOfSeveral: while a name has older records in memory it stays there, for
// when its newest one is reloaded, or lost with its file.
func TestSpillNewestOfSeveral(t *testing.T) {
	for name, lose := range map[string]bool{"reloaded": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			x := newEntries()
			s := openIndexed(t, pairs(dir, 1), x)
			items := putPairs(t, s, 0, 3)
			newer := testItem(50, 9000, testName("0", 500))
			put(t, s, newer)
			items = append(items, putPairs(t, s, 3, 1)...)
			ref, err := s.Pin(items[1].Info.ID)
			must(t, err)
			is := spill(t, s)
			ref.Release()
			if is.Number != 1 {
				t.Fatalf("spilled %+v", is)
			}
			judge(s, true) // its block is not in memory, and yet is there
			must(t, s.Sync(t.Context()))
			if lose {
				must(t, os.Remove(filepath.Join(dir, segmentPath(1, 1))))
				missed(t, s)
				must(t, s.Sync(t.Context()))
			} else {
				reload(t, s, is, x)
				if st := s.Store.names[nameKey{"ns", "0"}]; st == nil || st.records != 2 || st.elsewhere || st.dropped {
					t.Errorf("the name is %+v", st)
				}
			}
			closeStore(t, s)
			s = openIndexed(t, pairs(dir, 2), newEntries())
			if id, ok := s.names["0"]; ok == lose || ok && id != newer.Info.ID {
				t.Errorf("the name is there: %v, of %v", ok, id)
			}
		})
	}
}

// TestSpillNameMoves: a name that gets a block in memory stands for that alone.
func TestSpillNameMoves(t *testing.T) {
	s := openIndexed(t, pairs(t.TempDir(), 1), newEntries())
	items := putPairs(t, s, 0, 3)
	link(t, s, items[0], "alias", 1000)
	spill(t, s)
	st := s.Store.names[nameKey{"ns", "alias"}]
	if !st.elsewhere {
		t.Errorf("the alias is %+v", st)
	}
	link(t, s, items[2], "alias", 1010)
	if st.elsewhere || st.id != items[2].Info.ID {
		t.Errorf("the moved alias is %+v", st)
	}
}

// TestSpilledCountForBudget: files that are spilled take of the budget of a merge, and
// are not rewritten.
func TestSpilledCountForBudget(t *testing.T) {
	dir := t.TempDir()
	o := pairs(dir, 1)
	o.SegmentBlocks = 10
	s := openIndexed(t, o, newEntries())
	items := putPairs(t, s, 0, 41)
	spill(t, s)
	spill(t, s)
	for _, it := range items[20:23] {
		must(t, s.Evict(it.Info.ID))
	}
	used := s.Usage().Used
	if m := merged(t, s, 2*used); m.Segments != 0 {
		t.Fatalf("there is room, and yet merged %+v", m)
	}
	if m := merged(t, s, used); m.Segments == 0 {
		t.Errorf("merged %+v", m)
	}
	if n := len(s.SpilledFiles()); n != 2 {
		t.Errorf("%d files are spilled", n)
	}
}

// TestSpilledAdopted: a directory that this run has lost and got back brings no spilled
// entries into memory.
func TestSpilledAdopted(t *testing.T) {
	dir := t.TempDir()
	x := newEntries()
	s := openIndexed(t, pairs(dir, 1), x)
	putPairs(t, s, 0, 3)
	is := spill(t, s)
	closeStore(t, s)
	x.unmark(is)
	s = openIndexed(t, pairs(dir, 2), x)
	s.mu.Lock()
	for f := range s.files {
		f.own = false
	}
	s.mu.Unlock()
	must(t, s.Adopt(t.Context(), is.Part, func(e tiers.Entry) error {
		if e.OtherOwner {
			t.Errorf("handed over %+v", e)
		}
		return nil
	}))
	is.Earlier = true
	if u := s.Usage(); len(s.Store.blocks) != 1 || !slices.Equal(s.SpilledFiles(), []Spilled{is}) || u.OtherOwners != 0 {
		t.Errorf("%d blocks in memory, spilled %+v, usage %+v", len(s.Store.blocks), s.SpilledFiles(), u)
	}
}
