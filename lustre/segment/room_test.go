package segment

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/space"
	"cascadekv/tiers"
)

// nearlyFull is a store on a file system whose free space the test sets. Its
// marks are 512 KiB and 1 MiB.
func nearlyFull(t *testing.T, change func(*Options)) (s *opened, fs *vfstest.Fault, free *int64, now *time.Time) {
	free, now = new(int64), new(time.Time)
	*free, *now = 10<<20, time.Unix(1800000000, 0)
	s, fs, _ = faulty(t, func(o *Options) {
		o.SegmentBytes = 1 << 20
		o.Now = func() time.Time { return *now }
		if change != nil {
			change(o)
		}
	})
	fs.SetSpace(func() vfs.Space { return vfs.Space{Total: 1 << 40, Free: *free} })
	return s, fs, free, now
}

// TestLowWater: below the low mark no blocks are put until there is the high
// one; names are, and merges go on.
func TestLowWater(t *testing.T) {
	s, _, free, now := nearlyFull(t, nil)
	kept := evictSome(t, s, populate(t, s, 60))
	settleDown(s)
	*free = 400 << 10
	put(t, s, testItem(900, 2000)) // statfs is not asked for each write
	*now = now.Add(space.LookEvery)
	late := testItem(901, 2000)
	err := s.Put(t.Context(), late)
	wantErr(t, "Put below the low mark", err, tiers.ErrFull)
	wantErr(t, "Put below the low mark", err, tiers.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "free some") || !s.ReadOnly() {
		t.Errorf("read-only: %v; %v", s.ReadOnly(), err)
	}
	if err := s.Unlink(block.ID{}, testName("0", 5000)); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Errorf("a name below the low mark: %v", err)
	}
	if m := merged(t, s, 0); m.Segments != 1 || m.Freed() <= 0 {
		t.Errorf("with room for one segment's live blocks: %+v", m)
	}
	*free = 100 << 10
	if m := merged(t, s, 0); m.Segments != 0 {
		t.Errorf("without room for any: %+v", m)
	}
	*free = 900 << 10
	wantErr(t, "Put between the marks", s.Put(t.Context(), late), tiers.ErrFull)
	*free = 1 << 20
	put(t, s, late)
	if s.ReadOnly() {
		t.Error("read-only above the high mark")
	}
	*free = 900 << 10
	*now = now.Add(space.LookEvery)
	put(t, s, testItem(902, 2000))
	wantBytes(t, s, append(kept, late)...)
}

// TestLowWaterAtNewFile: room is looked for before each segment.
func TestLowWaterAtNewFile(t *testing.T) {
	s, fs, free, _ := nearlyFull(t, func(o *Options) { o.SegmentBlocks = 2 })
	put(t, s, testItem(1, 2000))
	*free = 0
	put(t, s, testItem(2, 2000))
	wantErr(t, "Put that makes a segment", s.Put(t.Context(), testItem(3, 2000)), tiers.ErrFull)
	fs.Add(vfstest.Rule{Op: vfs.OpStatfs, Err: vfs.ErrIO})
	wantErr(t, "Put while statfs fails", s.Put(t.Context(), testItem(3, 2000)), tiers.ErrFull)
	fs.Clear()
	*free = 10 << 20
	put(t, s, testItem(3, 2000))
}

// TestStatfsHangs: it takes the put that asks, until its deadline, and no other.
func TestStatfsHangs(t *testing.T) {
	s, fs, _, _ := nearlyFull(t, func(o *Options) { o.SegmentBlocks = 1 })
	put(t, s, testItem(1, 2000))
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpStatfs, Block: server})
	asks := testItem(2, 2000)
	wantErr(t, "Put that asks", s.Put(fs.UntilHung(t.Context(), 1), asks), tiers.ErrUnavailable)
	for i := range uint64(3) {
		put(t, s, testItem(10+i, 2000))
	}
	close(server)
	settleDown(s)
	put(t, s, asks)
	wantBytes(t, s, testItem(1, 2000), testItem(10, 2000), asks)
}

// TestOwnWritesCount: a store that is alone on its file system stops at the mark,
// though statfs is not asked while a segment takes frames.
func TestOwnWritesCount(t *testing.T) {
	s, _, free, _ := nearlyFull(t, nil)
	*free = 900 << 10
	var err error
	n := uint64(0)
	for ; err == nil && n < 100; n++ {
		err = s.Put(t.Context(), testItem(n, 20000))
	}
	wantErr(t, "Put", err, tiers.ErrFull)
	if used := s.Usage().Used; used < 380<<10 || used > 420<<10 {
		t.Errorf("stopped after %d KiB; 900 KiB were free, the mark is at 512", used>>10)
	}
}

// TestSparsest: the segments with the least in them, of those that are worth it, and what
// they have; without that one is gone.
func TestSparsest(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, small(dir, 1))
	all := populate(t, s, 60)
	if all := s.Sparsest(8); len(all) > 0 {
		t.Errorf("all is live, and %d segments are to go", len(all))
	}
	kept := evictSome(t, s, all)
	least, _ := s.where(t, kept[10].Info.ID)
	for _, it := range kept {
		if path, _ := s.where(t, it.Info.ID); path == least && it.Info.ID != kept[10].Info.ID {
			if err := s.Evict(it.Info.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	settleDown(s)
	stored := func(ids []block.ID) (n int64) { // some are stored compressed, where there is time for it
		s.index.mu.Lock()
		defer s.index.mu.Unlock()
		for _, id := range ids {
			n += s.index.blocks[id].as.Footprint()
		}
		return n
	}
	if one, more := s.Sparsest(1), s.Sparsest(8); len(one) != 1 || len(more) < 2 || !slices.IsSortedFunc(more, func(a, b []block.ID) int { return cmp.Compare(stored(a), stored(b)) }) {
		t.Errorf("%d segments of 1, %d of 8", len(one), len(more))
	}
	files := s.fileCount()
	ids := s.Sparsest(8)[0]
	for _, id := range ids {
		if path, _ := s.where(t, id); path != least {
			t.Errorf("a block of %s, want %s", path, least)
		}
		if err := s.Evict(id); err != nil {
			t.Fatal(err)
		}
	}
	settleDown(s)
	if got := s.fileCount(); len(ids) == 0 || got != files-1 {
		t.Errorf("%d files, %d after %d blocks went", files, got, len(ids))
	}
}
