package segment

import (
	"errors"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// TestSpillReloadFails: then the file stays spilled.
func TestSpillReloadFails(t *testing.T) {
	x := newEntries()
	s := openIndexed(t, pairs(t.TempDir(), 1), x)
	items := putPairs(t, s, 0, 3)
	is := spill(t, s)
	sick := errors.New("sick")
	_, err := s.Reload(t.Context(), is.Part, is.Number, func([]format.Record) ([]Worth, error) { return nil, sick })
	wantErr(t, "Reload", err, sick)
	if len(s.SpilledFiles()) != 1 {
		t.Error("it is not spilled any more")
	}
	reload(t, s, is, x)
	wantBytes(t, s, items...)
}

// TestReloadWithoutRoom: a file is reloaded while nothing can be written, though the
// indexer has a withdrawal that is not durable. Until it is, what it withdraws stays if it
// hides an older record.
func TestReloadWithoutRoom(t *testing.T) {
	dir, fs := t.TempDir(), vfstest.NewFault(vfs.OS{})
	o := pairs(dir, 1)
	o.FS = fs
	x := newEntries()
	s := openIndexed(t, o, x)
	putPairs(t, s, 0, 2)
	newer := []tiers.Item{testItem(50, 9000, testName("0", 500)), testItem(51, 9000, testName("51", 510))}
	put(t, s, newer...)
	putPairs(t, s, 2, 1)
	spill(t, s)
	is := spill(t, s)
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Err: vfs.ErrNoSpace})
	must(t, s.Unlink(block.ID{}, testName("0", 1000)))
	got, err := s.Reload(t.Context(), is.Part, is.Number, func(records []format.Record) ([]Worth, error) {
		return make([]Worth, len(records)), nil
	})
	must(t, err)
	if len(got) != 2 || len(got[0].Names)+len(got[1].Names) > 0 {
		t.Errorf("reloaded %+v", got)
	}
	for _, it := range newer {
		must(t, s.Evict(it.Info.ID))
	}
	settleDown(s)
	if s.Close() == nil {
		t.Error("the withdrawal was written")
	}
	s = openIndexed(t, pairs(dir, 2), newEntries())
	if id := s.names["0"]; id != newer[0].Info.ID {
		t.Errorf("the name stands for %v", id)
	}
}

// TestReloadedFileHides: a withdrawal stays as long as the file with what it withdraws,
// though that was reloaded, and one in such a file until a round has judged it.
func TestReloadedFileHides(t *testing.T) {
	dir := t.TempDir()
	x := newEntries()
	s := openIndexed(t, pairs(dir, 1), x)
	kept, other := putPairs(t, s, 0, 2), putPairs(t, s, 2, 1)
	unlink(t, s, "0", 1000)
	unlink(t, s, "1", 1010)
	other = append(other, putPairs(t, s, 3, 2)...)
	reload(t, s, spill(t, s), x)
	for _, it := range other[:2] {
		must(t, s.Evict(it.Info.ID))
	}
	judge(s, false)
	settleDown(s)
	closeStore(t, s)
	s = openIndexed(t, pairs(dir, 2), newEntries())
	for _, key := range []string{"0", "1"} {
		if id, ok := s.names[key]; ok {
			t.Errorf("the name %s is back, for %v", key, id)
		}
	}
	wantBytes(t, s, kept...)
}

// TestReloadedDropHides: likewise for a withdrawal that is reloaded itself.
func TestReloadedDropHides(t *testing.T) {
	x := newEntries()
	s := openIndexed(t, pairs(t.TempDir(), 1), x)
	items := putPairs(t, s, 0, 1)
	unlink(t, s, "far", 1000)
	items = append(items, putPairs(t, s, 1, 2)...)
	reload(t, s, spill(t, s), x)
	for _, it := range items[:2] {
		must(t, s.Evict(it.Info.ID))
	}
	settleDown(s)
	if _, ok := x.newest()["far"]; !ok {
		t.Error("the withdrawal is gone")
	}
	judge(s, false)
	settleDown(s)
	if _, ok := x.newest()["far"]; ok {
		t.Error("the withdrawal is there for nothing")
	}
}
