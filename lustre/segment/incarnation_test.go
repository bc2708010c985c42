package segment

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// rankOptions are those of a rank that recovers its own segments alone.
func rankOptions(dir string, rank uint32, incarnation uint64) Options {
	o := testOptions(dir, incarnation)
	o.Rank, o.OwnOnly = rank, true
	return o
}

// TestAdopt: a rank recovers its own incarnations, and takes those of others in
// when it is told to, once.
func TestAdopt(t *testing.T) {
	dir := t.TempDir()
	var byRank [3][]tiers.Item
	for rank := range byRank {
		for run := range 2 {
			s := openStore(t, rankOptions(dir, uint32(rank), uint64(run+1)))
			for i := range 10 {
				n := 100*rank + 10*run + i
				it := testItem(uint64(n), 5000+n, testName(fmt.Sprint(n), uint64(1000+n)))
				put(t, s, it)
				byRank[rank] = append(byRank[rank], it)
			}
			if run == 1 { // a second name of a block of the run before
				if err := s.Link(byRank[rank][0].Info.ID, testName(fmt.Sprint("again", rank), 5000)); err != nil {
					t.Fatal(err)
				}
			}
			closeStore(t, s)
		}
	}
	s := openStore(t, rankOptions(dir, 0, 3))
	if len(s.blocks) != len(byRank[0]) || s.names["again0"] != byRank[0][0].Info.ID {
		t.Errorf("%d blocks recovered, want the rank's own %d; names %v", len(s.blocks), len(byRank[0]), s.names)
	}
	all, err := s.Parts(t.Context())
	if err != nil || len(all) != 7 { // its own among them, as it took over two
		t.Fatalf("incarnations %v, error %v", all, err)
	}
	for turn := range 2 {
		found, names := map[block.ID]bool{}, map[string]block.ID{}
		for _, one := range all {
			err := s.Adopt(t.Context(), one, func(f tiers.Entry) error {
				if found[f.Info.ID] = true; !f.OtherOwner {
					t.Errorf("%v is this rank's own", f.Info.ID)
				}
				for _, n := range f.Names {
					names[n.Key] = f.Info.ID
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		want := 40 * (1 - turn)
		if len(found) != want || len(names) > 0 && names["again2"] != byRank[2][0].Info.ID {
			t.Errorf("turn %d: %d blocks adopted, want %d; names %v", turn, len(found), want, names)
		}
	}
	wantBytes(t, s, append(append(byRank[0], byRank[1]...), byRank[2]...)...)
	closeStore(t, s)
	if n := len(segments(t, dir)); n != 6 {
		t.Errorf("%d segments are left of 6", n)
	}
}

// TestAdoptOfTheLiving: a file that a process of this node may be writing is not
// synced for it, and what may not be durable there is left out until it has
// ended. What it adds is taken in, once.
func TestAdoptOfTheLiving(t *testing.T) {
	dir := t.TempDir()
	o := rankOptions(dir, 1, 1)
	o.Process = lease.Self()
	writer := openStore(t, o)
	var items []tiers.Item
	add := func(n int) {
		t.Helper()
		for range n {
			i := uint64(len(items) + 1)
			items = append(items, testItem(i, 9000, testName(fmt.Sprint(i), i)))
			put(t, writer, items[i-1])
		}
	}
	add(3)
	fs := vfstest.NewFault(vfs.OS{})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Path: "agg_rank001", Err: syscall.EIO}) // which would be listed
	o = rankOptions(dir, 0, 1)
	o.FS = fs
	s := openStore(t, o)
	adopt := func(want ...int) {
		t.Helper()
		all, err := s.Parts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var found []block.ID
		for _, one := range all {
			if err := s.Adopt(t.Context(), one, func(f tiers.Entry) error { found = append(found, f.Info.ID); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		var ids []block.ID
		for _, i := range want {
			ids = append(ids, items[i].Info.ID)
		}
		if !slices.Equal(found, ids) {
			t.Errorf("adopted %v, want %v", found, ids)
		}
	}
	adopt(0, 1)
	adopt()
	add(2)
	adopt(2, 3)
	adopt()
	closeStore(t, writer)
	adopt(4)
	if skipped := s.Skipped(); len(skipped) > 0 {
		t.Errorf("another's file was synced: %v", skipped)
	}
	wantBytes(t, s, items...)
	closeStore(t, s)
}
