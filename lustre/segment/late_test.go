package segment

import (
	"path/filepath"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// lateRank has n blocks, each in a segment of its own that an earlier run left, of
// which those that bad picks wait for server in their op.
func lateRank(t *testing.T, n int, op vfs.Op, bad func(i int) bool, server chan struct{}) (Options, []tiers.Item) {
	t.Helper()
	dir := t.TempDir()
	o := testOptions(dir, 1)
	o.SegmentBlocks = 1
	s := openStore(t, o)
	var items []tiers.Item
	for i := range n {
		items = append(items, testItem(uint64(i+1), 9000, testName(string(rune('a'+i)), uint64(i+1))))
		put(t, s, items[i])
	}
	closeStore(t, s)
	fs := vfstest.NewFault(vfs.OS{})
	for i := range n {
		if bad(i) {
			fs.Add(vfstest.Rule{Op: op, Path: filepath.Base(segmentPath(1, uint64(i))), Block: server})
		}
	}
	o = testOptions(dir, 2)
	o.FS, o.Patience, o.Now = fs, time.Second, time.Now
	return o, items
}

// TestLateSegments: a segment that does not answer does not keep a start waiting,
// and the others are served. When it answers it is adopted, as this run's own.
func TestLateSegments(t *testing.T) {
	for name, op := range map[string]vfs.Op{"open": vfs.OpOpen, "size": vfs.OpSize, "read": vfs.OpRead, "close": vfs.OpClose} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits most of the time
			server := make(chan struct{})
			bad := func(i int) bool { return i == 1 || i == 4 }
			o, items := lateRank(t, 6, op, bad, server)
			o.Patience = 3 * time.Second // a busy server takes more than one for the others
			var s *opened
			inTime(t, func() { s = openStore(t, o) })
			for i, it := range items {
				if _, found := s.blocks[it.Info.ID]; found == bad(i) {
					t.Errorf("block %d is found: %v", i, found)
				}
				if !bad(i) {
					wantBytes(t, s, it)
				}
			}
			if n, one := s.Late(); n != 2 || filepath.Base(one) != "agg_rank003_000001.bin" || len(s.Skipped()) != 0 {
				t.Errorf("%d are late, among them %s; skipped %v", n, one, s.Skipped())
			}
			inTime(t, func() { // they still hang
				must(t, s.Adopt(t.Context(), tiers.Part{Rank: 3, Incarnation: 1}, func(f tiers.Entry) error {
					t.Errorf("adopted %+v", f)
					return nil
				}))
			})
			close(server)
			adoptLate(t, s, 2)
			wantBytes(t, s, items...)
		})
	}
}

// adoptLate adopts what the first incarnation left as it answers, until n blocks
// came.
func adoptLate(t *testing.T, s *opened, n int) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for n > 0 {
		select {
		case <-s.Arrived():
		case <-time.After(100 * time.Millisecond): // what was not tried again yet
		case <-deadline:
			t.Fatalf("%d blocks did not come", n)
		}
		must(t, s.Adopt(t.Context(), tiers.Part{Rank: 3, Incarnation: 1}, func(f tiers.Entry) error {
			if f.OtherOwner || len(f.Names) != 1 {
				t.Errorf("adopted as %+v", f)
			}
			n--
			return nil
		}))
	}
	if n, one := s.Late(); n != 0 {
		t.Errorf("%d are late still, among them %s", n, one)
	}
}

// TestManyLateSegments: a server with very many segments is not asked for each of
// them, and all are there when it is back.
func TestManyLateSegments(t *testing.T) {
	server := make(chan struct{})
	const n = 120
	o, items := lateRank(t, n, vfs.OpRead, func(i int) bool { return i != 70 }, server)
	o.Readers = 8
	var s *opened
	began := time.Now()
	inTime(t, func() { s = openStore(t, o) })
	t.Logf("it took %v", time.Since(began))
	if n, _ := s.Late(); n < len(items)-1 || len(s.Skipped()) != 0 {
		t.Errorf("%d are late, skipped %v", n, s.Skipped())
	}
	if h := s.Health(); h.Hanging > 8+4 {
		t.Errorf("%d operations hang", h.Hanging)
	}
	close(server)
	adoptLate(t, s, n-len(s.blocks))
	wantBytes(t, s, items...)
}
