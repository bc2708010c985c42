package segment

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

func TestRotation(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		files  int
	}{
		"by default one file":    {func(o *Options) {}, 1},
		"256 blocks as CASCADE":  {func(o *Options) { o.SegmentBlocks = 256 }, 3},
		"bytes":                  {func(o *Options) { o.SegmentBytes = 1 << 20 }, 5},
		"smaller than any batch": {func(o *Options) { o.SegmentBytes = 1 }, 60},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			o := testOptions(dir, 1)
			c.change(&o)
			s := openStore(t, o)
			var all []tiers.Item
			for batch := range 60 {
				var items []tiers.Item
				for i := range 10 {
					items = append(items, testItem(uint64(batch*10+i), 5000+i))
				}
				put(t, s, items...)
				all = append(all, items...)
			}
			wantBytes(t, s, all...)
			closeStore(t, s)
			if n := len(segments(t, dir)); n != c.files {
				t.Errorf("%d files, want %d", n, c.files)
			}
			wantBytes(t, openStore(t, testOptions(dir, 2)), all...)
		})
	}
}

// TestPermissions: only the owner may read KV bytes.
func TestPermissions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := openStore(t, testOptions(dir, 1))
	put(t, s, testItem(1, 10))
	for path, want := range map[string]os.FileMode{
		dir: 0o700, filepath.Dir(filepath.Join(dir, segmentPath(1, 0))): 0o700,
		filepath.Join(dir, segmentPath(1, 0)): 0o600,
	} {
		st, err := os.Stat(path)
		if err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: mode %v, error %v, want %v", path, st.Mode(), err, want)
		}
	}
}

func TestIncarnationTaken(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		s := openStore(t, testOptions(dir, 1))
		put(t, s, testItem(uint64(i), 100))
	}
	wantFiles(t, dir, segmentPath(1, 0), segmentPath(2, 0), segmentPath(3, 0))
}

// TestOtherRanks: everyone's segments are read, only the own rank's unlinked.
func TestOtherRanks(t *testing.T) {
	dir := t.TempDir()
	theirs, ours := testItem(1, 9000, testName("theirs", 1)), testItem(2, 9000, testName("ours", 2))
	o := testOptions(dir, 1)
	o.Rank = 12
	other := openStore(t, o)
	put(t, other, theirs)
	closeStore(t, other)
	s := openStore(t, testOptions(dir, 1))
	put(t, s, ours)
	closeStore(t, s)
	s = openStore(t, testOptions(dir, 2))
	wantBytes(t, s, theirs, ours)
	for _, it := range []tiers.Item{theirs, ours} {
		if err := s.Evict(it.Info.ID); err != nil {
			t.Fatal(err)
		}
	}
	settleDown(s)
	wantFiles(t, dir, "rank012-0000000000000001/agg_rank012_000000.bin")
}

// TestTombstones: a segment without live blocks stays as long as it hides an
// older record that lies elsewhere.
func TestTombstones(t *testing.T) {
	drop := func(s *opened, a, b tiers.Item) error { return s.Unlink(block.ID{}, testName("k", 5)) }
	move := func(s *opened, a, b tiers.Item) error { return s.Link(b.Info.ID, testName("k", 5)) }
	for name, c := range map[string]struct {
		change func(s *opened, a, b tiers.Item) error
		evict  func(a, b tiers.Item) []tiers.Item
		files  []string
		live   bool // the old record must not hide: nothing newer was written
	}{
		"a drop stays while the dropped record is there": {
			drop, func(a, b tiers.Item) []tiers.Item { return []tiers.Item{b} }, []string{segmentPath(1, 0), segmentPath(2, 0)}, false},
		"a drop goes with the dropped record": {
			drop, func(a, b tiers.Item) []tiers.Item { return []tiers.Item{a, b} }, nil, false},
		"a newer record of a dead block hides an older one": {
			move, func(a, b tiers.Item) []tiers.Item { return []tiers.Item{b} }, []string{segmentPath(1, 0), segmentPath(2, 0)}, false},
		"a newer record goes with the older one": {
			move, func(a, b tiers.Item) []tiers.Item { return []tiers.Item{a, b} }, nil, false},
		"a superseded record does not keep its segment": {
			move, func(a, b tiers.Item) []tiers.Item { return []tiers.Item{a} }, []string{segmentPath(2, 0)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a, b := testItem(1, 9000, testName("k", 1)), testItem(2, 9000)
			s := openStore(t, testOptions(dir, 1))
			put(t, s, a)
			closeStore(t, s)
			s = openStore(t, testOptions(dir, 2))
			put(t, s, b)
			if err := c.change(s, a, b); err != nil {
				t.Fatal(err)
			}
			closeStore(t, s)
			s = openStore(t, testOptions(dir, 3))
			for _, it := range c.evict(a, b) {
				if err := s.Evict(it.Info.ID); err != nil {
					t.Fatal(err)
				}
			}
			settleDown(s)
			wantFiles(t, dir, c.files...)
			closeStore(t, s)
			again := openStore(t, testOptions(dir, 4))
			if again.names["k"] == a.Info.ID {
				t.Error("an old record came back")
			}
			if c.live && again.names["k"] != b.Info.ID {
				t.Error("the newer record is gone")
			}
		})
	}
}

// TestPinnedSegmentStays: a segment is not unlinked under a reader.
func TestPinnedSegmentStays(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 1))
	a, b := testItem(1, 9000), testItem(2, 9000)
	put(t, s, a, b)
	closeStore(t, s)
	s = openStore(t, testOptions(dir, 2))
	ref, err := s.Pin(a.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Evict(b.Info.ID); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Evict", s.Evict(a.Info.ID), tiers.ErrPinned)
	dst := make([]byte, 9000)
	if err := ref.ReadInto(t.Context(), dst); err != nil {
		t.Errorf("ReadInto: %v", err)
	}
	ref.Release()
	if err := s.Evict(a.Info.ID); err != nil {
		t.Errorf("Evict: %v", err)
	}
	settleDown(s)
	wantFiles(t, dir)
	if u := s.Usage(); u != (tiers.Usage{}) || s.fileCount() != 0 {
		t.Errorf("usage %+v", u)
	}
}

// TestNamesGoOutByThemselves when many have gathered.
func TestNamesGoOutByThemselves(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 1))
	it := testItem(1, 100)
	put(t, s, it)
	for i := range flushAt {
		if err := s.Link(it.Info.ID, testName(fmt.Sprint(i), uint64(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	settleDown(s)
	crashed := openStore(t, testOptions(dir, 2))
	if len(crashed.names) != flushAt {
		t.Errorf("%d names are durable, want %d", len(crashed.names), flushAt)
	}
}

func TestSyncMakesNamesDurable(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 1))
	it := testItem(1, 100, testName("old", 1))
	put(t, s, it)
	if err := s.Link(it.Info.ID, testName("new", 2)); err != nil {
		t.Fatal(err)
	}
	if err := s.Unlink(block.ID{}, testName("old", 3)); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	crashed := openStore(t, testOptions(dir, 2))
	if crashed.names["new"] != it.Info.ID || crashed.dropped["old"] != 3 || len(crashed.names) != 1 {
		t.Errorf("names %v, dropped %v", crashed.names, crashed.dropped)
	}
}

func TestBadItems(t *testing.T) {
	s := openStore(t, testOptions(t.TempDir(), 1))
	good := testItem(1, 100)
	for name, c := range map[string]struct {
		change func(*tiers.Item)
		want   error
	}{
		"size and data differ": {func(it *tiers.Item) { it.Info.Size++ }, ErrBadItem},
		"provisional id":       {func(it *tiers.Item) { it.Info.ID = block.Provisional(1) }, ErrBadItem},
		"no id":                {func(it *tiers.Item) { it.Info.ID = block.ID{} }, ErrBadItem},
		"too large":            {func(it *tiers.Item) { it.Info.Size = block.MaxSize + 1 }, tiers.ErrTooLarge},
		"long key": {func(it *tiers.Item) {
			it.Names = []block.Name{{Key: strings.Repeat("k", block.MaxKey+1)}}
		}, ErrBadItem},
	} {
		t.Run(name, func(t *testing.T) {
			bad := good
			c.change(&bad)
			wantErr(t, "Put", s.Put(t.Context(), testItem(2, 10), bad), c.want)
			_, err := s.Pin(testItem(2, 10).Info.ID)
			wantErr(t, "Acquire", err, tiers.ErrNotFound)
		})
	}
	put(t, s, good)
}

// TestStrangersAreLeftAlone: files that are not ours do not stop recovery and
// are not touched.
func TestStrangersAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 1))
	it := testItem(1, 9000)
	put(t, s, it)
	closeStore(t, s)
	good := readFile(t, dir, segmentPath(1, 0))
	future := append([]byte(nil), good...)
	future[8] = 77
	writeFile(t, future, dir, segmentPath(1, 1))
	writeFile(t, nil, dir, segmentPath(1, 2))
	leftover := segmentPath(1, 3) + ".tmp" // ours, of a run that ended
	writeFile(t, good, dir, leftover)
	writeFile(t, good, dir, segmentPath(5, 3)+".tmp") // of a run that began later
	writeFile(t, good, dir, "rank004-0000000000000001", "agg_rank004_000000.bin.tmp")
	writeFile(t, []byte("mine"), dir, "notes", "agg_rank003_000000.bin")
	writeFile(t, []byte("mine"), dir, "rank3-1", "agg_rank003_000000.bin")
	if err := os.Symlink(filepath.Join(dir, segmentPath(1, 0)), filepath.Join(dir, segmentPath(1, 4))); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, testOptions(dir, 2))
	wantBytes(t, s, it)
	if refused := s.Refused(); len(s.Skipped()) != 2 || refused.Files != 1 {
		t.Errorf("skipped %v, refused %+v; want the future version and the empty file, and the link", s.Skipped(), refused)
	}
	if err := s.Evict(it.Info.ID); err != nil {
		t.Fatal(err)
	}
	settleDown(s)
	left := segments(t, dir)
	if len(left) != 7 || slices.Contains(left, leftover) {
		t.Errorf("%d files left, want the 7 that are not ours: %v", len(left), left)
	}
}

// TestPutDoesNotCopyPayload: the bytes on the heap do not grow with the block.
func TestPutDoesNotCopyPayload(t *testing.T) {
	s := openStore(t, testOptions(t.TempDir(), 1))
	it := testItem(1, 8<<20)
	const rounds = 8
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		put(t, s, it)
		if err := s.Evict(it.Info.ID); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / rounds; n > 256<<10 {
		t.Errorf("%d bytes allocated for a put of %d", n, it.Info.Size)
	}
}

// TestNamesFillASegment: a segment that takes few blocks takes few names, which are in
// memory while it is written.
func TestNamesFillASegment(t *testing.T) {
	s := openStore(t, pairs(t.TempDir(), 1))
	it := testItem(1, 1000, testName("a", 100))
	put(t, s, it)
	for i := range 3 * entriesOfBlock {
		link(t, s, it, fmt.Sprint("more", i), uint64(200+2*i))
		must(t, s.Sync(t.Context()))
	}
	if n := len(segments(t, s.opt.Dir)); n != 2 {
		t.Errorf("a block and %d names of it, each written alone, lie in %d files", 3*entriesOfBlock, n)
	}
}
