package segment

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// missed asks for what is gone.
func missed(t *testing.T, s *opened) int {
	t.Helper()
	lost, err := s.Missing(t.Context())
	must(t, err)
	return len(lost)
}

// TestMissing: whatever of its files somebody removes or renames, sealed, open or
// being written, a run notices; it forgets those blocks and no others, and what is
// put then is there after a restart.
func TestMissing(t *testing.T) {
	for name, c := range map[string]struct {
		remove func(dir, own string) error
		lost   int
	}{
		"nothing":              {func(string, string) error { return nil }, 0},
		"all":                  {func(dir, _ string) error { return os.RemoveAll(dir) }, 6},
		"this run's directory": {func(_, own string) error { return os.RemoveAll(own) }, 4},
		"all, by a rename":     {func(dir, _ string) error { return os.Rename(dir, dir+".old") }, 6},
		"what is in it": {func(_, own string) error {
			all, _ := filepath.Glob(filepath.Join(own, "*"))
			for _, path := range all {
				if err := os.Remove(path); err != nil {
					return err
				}
			}
			return nil
		}, 4},
		"a sealed segment": {func(_, own string) error { return os.Remove(filepath.Join(own, "agg_rank003_000000.bin")) }, 2},
		"the current one":  {func(_, own string) error { return os.Remove(filepath.Join(own, "agg_rank003_000001.bin")) }, 2},
		"one taken over":   {func(dir, _ string) error { return os.Remove(filepath.Join(dir, segmentPath(1, 0))) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "kv")
			o := testOptions(dir, 1)
			o.SegmentBlocks = 2
			var items []tiers.Item
			for i := range 6 {
				items = append(items, testItem(uint64(i+1), 9000, testName(string(rune('a'+i)), uint64(10*i+10))))
			}
			s := openStore(t, o)
			put(t, s, items[:2]...)
			closeStore(t, s)
			o.Incarnation, o.MaxOpenFiles = 2, 8
			s = openStore(t, o)
			put(t, s, items[2:4]...)
			put(t, s, items[4:]...)
			if n := missed(t, s); n != 0 {
				t.Errorf("%d blocks are gone before anything was removed", n)
			}
			must(t, c.remove(dir, filepath.Join(dir, format.FileID{Rank: 3, Incarnation: 2}.Dir())))
			if n := missed(t, s); n != c.lost || s.Usage().Blocks != 6-n {
				t.Errorf("%d blocks are gone, want %d; %+v", n, c.lost, s.Usage())
			}
			if n := missed(t, s); n != 0 {
				t.Errorf("%d blocks are gone again", n)
			}
			lost := slices.DeleteFunc(slices.Clone(items), func(it tiers.Item) bool { return !s.missing(it) })
			if len(lost) > 0 {
				put(t, s, lost...)
			}
			wantBytes(t, s, items...)
			if n := missed(t, s); n != 0 {
				t.Errorf("%d blocks are gone after they were put again", n)
			}
			closeStore(t, s)
			o.Incarnation = 3
			s = openStore(t, o)
			wantBytes(t, s, items...)
			for i, it := range items {
				if key := string(rune('a' + i)); s.names[key] != it.Info.ID {
					t.Errorf("%s is %v after a restart, want %v", key, s.names[key], it.Info.ID)
				}
			}
		})
	}
}

// TestPutMakesItsDirectoryAnew: a put that finds its directory removed has it made anew, and
// succeeds.
func TestPutMakesItsDirectoryAnew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kv")
	o := testOptions(dir, 1)
	o.SegmentBlocks = 1
	s := openStore(t, o)
	first, second := testItem(1, 9000, testName("a", 10)), testItem(2, 9000, testName("b", 20))
	put(t, s, first)
	must(t, os.RemoveAll(dir))
	put(t, s, second)
	if n := missed(t, s); n != 1 {
		t.Errorf("%d blocks are gone, want the first", n)
	}
	put(t, s, first)
	closeStore(t, s)
	o.Incarnation = 2
	wantBytes(t, openStore(t, o), first, second)
}

// TestMissingIsCertain: of a file system that does not say that something is gone,
// or of another that was mounted in its place, nothing is concluded.
func TestMissingIsCertain(t *testing.T) {
	s, fs, _ := faulty(t, nil)
	it := testItem(1, 9000)
	put(t, s, it)
	for _, r := range []vfstest.Rule{{Op: vfs.OpReadDir, Err: unix.EIO, Count: 1}, {Op: vfs.OpReadDir, Err: unix.ESTALE, Count: 1}, {Op: vfs.OpStatfs, Err: unix.ENOTCONN, Count: 1}} {
		fs.Add(r)
		if lost, err := s.Missing(t.Context()); !errors.Is(err, tiers.ErrUnavailable) || len(lost) != 0 {
			t.Errorf("%v, %v", lost, err)
		}
	}
	if n := missed(t, s); n != 0 {
		t.Errorf("%d blocks are gone", n)
	}
	s.mounted++
	if lost, err := s.Missing(t.Context()); !errors.Is(err, tiers.ErrUnavailable) || len(lost) != 0 {
		t.Errorf("another file system: %v, %v", lost, err)
	}
	wantBytes(t, s, it)
}

// TestMissingAfterARead: what a read did not find is missing all the same, all of the file,
// but for what was put again since.
func TestMissingAfterARead(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(dir, 1)
	o.SegmentBlocks = 3
	s := openStore(t, o)
	var items []tiers.Item
	for i := range 5 {
		items = append(items, testItem(uint64(i+1), 9000, testName(string(rune('a'+i)), uint64(10*i+10))))
	}
	put(t, s, items[:3]...)
	put(t, s, items[3:]...)
	closeStore(t, s) // and with it the descriptors
	o.Incarnation = 2
	s = openStore(t, o)
	must(t, os.Remove(filepath.Join(dir, segmentPath(1, 0))))
	if _, err := read(t.Context(), s, items[0]); !errors.Is(err, tiers.ErrUnavailable) {
		t.Fatalf("a block of a file that was removed: %v", err)
	}
	put(t, s, items[1])
	lost, err := s.Missing(t.Context())
	must(t, err)
	want := []block.ID{items[0].Info.ID, items[2].Info.ID}
	for _, id := range want {
		if !slices.Contains(lost, id) {
			t.Errorf("%v is missing, and not returned", id)
		}
	}
	if len(lost) != len(want) {
		t.Errorf("%d blocks are gone, want %d", len(lost), len(want))
	}
	if n := missed(t, s); n != 0 {
		t.Errorf("%d blocks are gone again", n)
	}
	wantBytes(t, s, items[1], items[3], items[4])
}

// TestMissingTombstones: a name that was withdrawn, or given to another block, in a
// file that is gone does not become again what it was before.
func TestMissingTombstones(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(dir, 1)
	o.SegmentBlocks = 2
	s := openStore(t, o)
	old, other, newer := testItem(1, 9000, testName("k", 10)), testItem(2, 9000, testName("n", 20)), testItem(3, 9000, testName("n", 40))
	put(t, s, old, other)
	must(t, s.Unlink(block.ID{}, testName("k", 30)))
	put(t, s, newer)
	must(t, os.Remove(filepath.Join(dir, segmentPath(1, 1))))
	if n := missed(t, s); n != 1 {
		t.Errorf("%d blocks are gone, want the newer", n)
	}
	must(t, s.Sync(t.Context()))
	look := func(incarnation uint64) *opened {
		t.Helper()
		closeStore(t, s)
		o.Incarnation = incarnation
		return openStore(t, o)
	}
	s = look(2)
	if k, n := s.names["k"], s.names["n"]; !k.IsZero() || !n.IsZero() {
		t.Errorf("k is %v and n is %v: neither is so any more", k, n)
	}
	put(t, s, newer)
	s = look(3)
	if n := s.names["n"]; n != newer.Info.ID {
		t.Errorf("n is %v after it was put again, want %v", n, newer.Info.ID)
	}
}

// TestGone: which files of other ranks are not there is known, unless the file system does
// not say so.
func TestGone(t *testing.T) {
	s, fs, dir := faulty(t, nil)
	put(t, s, testItem(1, 9000))
	here, err := s.Segment(testItem(1, 9000).Info.ID)
	must(t, err)
	other := format.FileID{Rank: 7, Incarnation: 5, Number: 3}
	path := filepath.Join(dir, other.Path())
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, nil, 0o600))
	nowhere, outside := format.FileID{Rank: 8, Incarnation: 5}.Path(), "../"+other.Path()
	look := func(want ...string) {
		t.Helper()
		gone, err := Gone(t.Context(), s.Store, here.Path, other.Path(), nowhere, outside)
		slices.Sort(gone)
		slices.Sort(want)
		if err != nil || !slices.Equal(gone, want) {
			t.Errorf("%q are gone, want %q; %v", gone, want, err)
		}
	}
	look(nowhere, outside)
	must(t, os.Remove(path))
	look(nowhere, outside, other.Path())
	fs.Add(vfstest.Rule{Op: vfs.OpReadDir, Err: unix.EIO, Count: 1})
	if gone, err := Gone(t.Context(), s.Store, other.Path()); !errors.Is(err, tiers.ErrUnavailable) || len(gone) != 0 {
		t.Errorf("%v, %v", gone, err)
	}
	s.mounted++
	if gone, err := Gone(t.Context(), s.Store, other.Path()); !errors.Is(err, tiers.ErrUnavailable) || len(gone) != 0 {
		t.Errorf("another file system: %v, %v", gone, err)
	}
}
