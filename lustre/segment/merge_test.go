package segment

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// TestMergesEnd: what a merge wrote is not written again and again, however much
// of a small file is no block.
func TestMergesEnd(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, small(dir, 1))
	kept := []tiers.Item{testItem(1, 4000, testName("a", 10)), testItem(2, 100, testName("b", 20))}
	put(t, s, kept[0])
	closeStore(t, s)
	s = openStore(t, small(dir, 2))
	put(t, s, kept[1])
	closeStore(t, s)
	s = openStore(t, small(dir, 3))
	for _, budget := range []int64{0, 1} {
		turns := 0
		for merged(t, s, budget).Segments > 0 {
			if turns++; turns > 3 {
				t.Fatalf("with a budget of %d there is always more to merge", budget)
			}
		}
	}
	wantBytes(t, s, kept...)
	if n := s.fileCount(); n != 1 {
		t.Errorf("%d files", n)
	}
	evicted := kept[0].Info.ID
	if err := s.Evict(evicted); err != nil {
		t.Fatal(err)
	}
	if m := merged(t, s, 1); m.Segments != 1 {
		t.Errorf("half of it is dead, and it stays: %+v", m)
	}
	wantBytes(t, s, kept[1])
}

// TestManyNamesAreNoReasonToMerge: where blocks are small the names of all of them may take
// more room, and to write the segment anew would give nothing back.
func TestManyNamesAreNoReasonToMerge(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, small(dir, 1))
	var items []tiers.Item
	for i := range uint64(300) {
		var names []block.Name
		for n := range uint64(8) {
			names = append(names, testName(fmt.Sprint(i, strings.Repeat("-", 100), n), 10*i+10))
		}
		items = append(items, testItem(1000+i, 64, names...))
	}
	put(t, s, items...)
	closeStore(t, s)
	s = openStore(t, small(dir, 2))
	if m := merged(t, s, 0); m.Segments != 0 {
		t.Errorf("all of it lives, and it is merged: %+v", m)
	}
	populate(t, s, 15)
	for _, it := range items[:200] {
		if err := s.Evict(it.Info.ID); err != nil {
			t.Fatal(err)
		}
	}
	if m := merged(t, s, 0); m.Segments != 1 || m.Blocks != 100 {
		t.Errorf("two thirds are dead: %+v", m)
	}
	wantBytes(t, s, items[200:]...)
}

// small has segments of about ten of the tests' blocks.
func small(dir string, incarnation uint64) Options {
	o := testOptions(dir, incarnation)
	o.SegmentBytes, o.Compress = 1<<20, true
	return o
}

const mergeSize = 100_000

// populate puts n blocks with a name each, in batches of five.
func populate(t *testing.T, s *opened, n int) []tiers.Item {
	t.Helper()
	var all []tiers.Item
	for i := 0; i < n; i += 5 {
		var items []tiers.Item
		for j := i; j < i+5; j++ {
			items = append(items, testItem(uint64(j), mergeSize+j, testName(fmt.Sprint(j), uint64(10*j+10))))
		}
		put(t, s, items...)
		all = append(all, items...)
	}
	return all
}

func merged(t *testing.T, s *opened, budget int64) tiers.Merged {
	t.Helper()
	m, err := s.Merge(t.Context(), budget, s.tell)
	if err != nil {
		t.Fatalf("Merge: %v", err)
	}
	settleDown(s)
	return m
}

// evictSome evicts two of three blocks and returns the rest.
func evictSome(t *testing.T, s *opened, all []tiers.Item) (kept []tiers.Item) {
	t.Helper()
	for i, it := range all {
		if i%3 == 0 {
			kept = append(kept, it)
			continue
		}
		if err := s.Evict(it.Info.ID); err != nil {
			t.Fatal(err)
		}
	}
	return kept
}

// TestMergeFreesSpace: what is live moves, with its names, in the order of its
// chains, and the old files go.
func TestMergeFreesSpace(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, small(dir, 1))
	kept := evictSome(t, s, populate(t, s, 90))
	before := s.Usage()
	var sum tiers.Merged
	for {
		m := merged(t, s, 0)
		sum.Add(m)
		if m.Segments == 0 {
			break
		}
	}
	after := s.Usage()
	if sum.Freed() != before.Used-after.Used || after.Used > before.Used*6/10 || after.Blocks != len(kept) || sum.Blocks == 0 {
		t.Errorf("%+v; before %+v, after %+v", sum, before, after)
	}
	if s.Merged() != sum || sum.Merges == 0 || sum.Bytes < mergeSize*sum.Blocks || sum.Written < sum.Bytes/4 {
		t.Errorf("the store tells of %+v, its merges of %+v", s.Merged(), sum)
	}
	if uint64(s.moved) != sum.Blocks {
		t.Errorf("%d blocks moved, told of %d", sum.Blocks, s.moved)
	}
	wantBytes(t, s, kept...)
	wantChainOrder(t, s, kept)
	closeStore(t, s)

	again := openStore(t, small(dir, 2))
	wantBytes(t, again, kept...)
	for _, it := range kept {
		if again.names[it.Names[0].Key] != it.Info.ID {
			t.Errorf("the name %q is lost", it.Names[0].Key)
		}
	}
}

// wantChainOrder: within a file later names do not lie before earlier ones.
func wantChainOrder(t *testing.T, s *opened, items []tiers.Item) {
	t.Helper()
	last := map[string]int64{}
	for _, it := range items {
		path, off := s.where(t, it.Info.ID)
		if off < last[path] {
			t.Errorf("%q lies before an earlier block of %s", it.Names[0].Key, path)
		}
		last[path] = off
	}
}

// TestMergeKeepsWhatCounts: tombstones, names of blocks that lie elsewhere, and
// nothing that is outdated.
func TestMergeKeepsWhatCounts(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, small(dir, 1))
	all := populate(t, s, 30)
	// Second names of blocks of the first file, and withdrawals, in later ones.
	for i, it := range all[:5] {
		if err := s.Link(it.Info.ID, testName(fmt.Sprint("second", i), 5000+uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		if err := s.Unlink(block.ID{}, testName(fmt.Sprint(i), 6000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	more := testItem(999, mergeSize, testName("more", 7000))
	put(t, s, more)
	rewritten := 0
	for run := uint64(2); run < 6; run++ {
		for _, it := range all[10:] { // those whose files were not unlinked come back with each run
			if err := s.Evict(it.Info.ID); err != nil && !errors.Is(err, tiers.ErrNotFound) {
				t.Fatal(err)
			}
		}
		rewritten += int(merged(t, s, 0).Segments)
		closeStore(t, s)
		s = openStore(t, small(dir, run))
	}
	if closeStore(t, s); rewritten == 0 {
		t.Error("nothing was merged")
	}
	s = openStore(t, small(dir, 9))
	wantBytes(t, s, append(slices.Clone(all[:10]), more)...)
	for i := range 5 {
		if s.names[fmt.Sprint("second", i)] != all[i].Info.ID {
			t.Errorf("the second name %d is lost", i)
		}
	}
	for i := range 10 {
		_, there := s.names[fmt.Sprint(i)]
		if there != (i >= 3) {
			t.Errorf("name %d is there: %v", i, there)
		}
	}
}

// TestMergeUnderLoad: reads, puts and evictions go on, and every block is right
// or gone because it was evicted.
func TestMergeUnderLoad(t *testing.T) {
	dir := t.TempDir()
	o := small(dir, 1)
	s := openStore(t, o)
	all := populate(t, s, 60)
	var gone sync.Map
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 3))
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				it := all[rng.IntN(len(all))]
				if w == 0 && i%4 == 0 {
					if err := s.Evict(it.Info.ID); err == nil {
						gone.Store(it.Info.ID, true)
					} else if !errors.Is(err, tiers.ErrNotFound) && !errors.Is(err, tiers.ErrPinned) {
						t.Error(err)
					}
					continue
				}
				_, was := gone.Load(it.Info.ID)
				got, err := read(t.Context(), s, it)
				if err == nil && string(got) != string(it.Data) {
					t.Error("wrong bytes")
				}
				if _, evicted := gone.Load(it.Info.ID); err != nil && !was && !evicted && !errors.Is(err, tiers.ErrNotFound) {
					t.Errorf("a block that nobody evicted: %v", err)
				}
			}
		})
	}
	for range 20 {
		if _, err := s.Merge(t.Context(), 2<<20, s.tell); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	var kept []tiers.Item
	for _, it := range all {
		if _, evicted := gone.Load(it.Info.ID); !evicted {
			kept = append(kept, it)
		}
	}
	wantBytes(t, s, kept...)
	closeStore(t, s)
	wantBytes(t, openStore(t, small(dir, 2)), kept...)
}

// TestMergeFails: an error anywhere leaves all that was live readable, now and
// after another merge and a restart, and keeps its names.
func TestMergeFails(t *testing.T) {
	failed := 0
	for n := range 40 {
		dir := t.TempDir()
		o := small(dir, 1)
		fault := vfstest.NewFault(vfs.OS{})
		o.FS = fault
		s := openStore(t, o)
		kept := evictSome(t, s, populate(t, s, 30))
		fault.Add(vfstest.Rule{After: n, Count: 1, Bytes: 5000, Err: vfs.ErrIO})
		if _, err := s.Merge(t.Context(), 0, s.tell); err != nil {
			failed++
		}
		settleDown(s)
		fault.Clear()
		wantBytes(t, s, kept...)
		merged(t, s, 0) // does what was left undone
		closeStore(t, s)
		s = openStore(t, small(dir, 2))
		wantBytes(t, s, kept...)
		for _, it := range kept {
			if s.names[it.Names[0].Key] != it.Info.ID {
				t.Errorf("failure %d: the name %q is lost", n, it.Names[0].Key)
			}
		}
	}
	if t.Logf("of 40 failures at one operation each %d ended the merge", failed); failed < 10 {
		t.Error("few failures were seen")
	}
}

// TestFailedMergeKeepsNames: what a merge wrote before its fsync failed may be
// gone, so the next one must take the names from where they were.
func TestFailedMergeKeepsNames(t *testing.T) {
	crash := vfstest.NewCrash()
	fault := vfstest.NewFault(crash)
	options := func(fs vfs.FS, incarnation uint64) Options {
		o := crashOptions(fs, incarnation)
		o.SegmentBytes = 1 << 20
		return o
	}
	s := openStore(t, options(fault, 1))
	kept := evictSome(t, s, populate(t, s, 30))
	fault.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Err: vfs.ErrIO})
	if _, err := s.Merge(t.Context(), 0, s.tell); !errors.Is(err, tiers.ErrUnavailable) {
		t.Fatalf("Merge: %v", err)
	}
	crash.Evict(1)
	if m := merged(t, s, 0); m.Blocks == 0 {
		t.Fatalf("%+v", m)
	}
	for seed := range uint64(20) {
		again := openStore(t, options(crash.After(vfstest.CutPower, seed), 2))
		wantBytes(t, again, kept...)
		for _, it := range kept {
			if again.names[it.Names[0].Key] != it.Info.ID {
				t.Errorf("seed %d: the name %q is lost", seed, it.Names[0].Key)
			}
		}
	}
}

// TestMergeWithdrawsDamage: a block whose bytes went bad is not moved with a new
// checksum.
func TestMergeWithdrawsDamage(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, small(dir, 1))
	kept := evictSome(t, s, populate(t, s, 30))
	path, off := s.where(t, kept[0].Info.ID)
	p := readFile(t, path)
	p[off+77] ^= 4
	writeFile(t, p, path)
	merged(t, s, 0)
	if _, err := read(t.Context(), s, kept[0]); !errors.Is(err, tiers.ErrNotFound) {
		t.Errorf("the damaged block: %v", err)
	}
	wantBytes(t, s, kept[1:]...)
}

// TestDropsOutliveWhatCannotBeRead: a withdrawal stays on record while a file
// that may hold the name cannot be read.
func TestDropsOutliveWhatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, small(dir, 1))
	put(t, s, testItem(1, mergeSize, testName("gone", 10)))
	closeStore(t, s)
	hidden := segmentPath(1, 0)
	head := readFile(t, dir, hidden)

	s = openStore(t, small(dir, 2))
	if err := s.Unlink(block.ID{}, testName("gone", 20)); err != nil {
		t.Fatal(err)
	}
	put(t, s, testItem(2, mergeSize, testName("other", 30)))
	closeStore(t, s)

	bad := append([]byte{}, head...)
	bad[4092] ^= 1 // of the header page's checksum
	writeFile(t, bad, dir, hidden)
	s = openStore(t, small(dir, 3))
	if err := s.Evict(testItem(2, mergeSize).Info.ID); err != nil {
		t.Fatal(err)
	}
	merged(t, s, 0)
	closeStore(t, s)

	writeFile(t, head, dir, hidden)
	s = openStore(t, small(dir, 4))
	if _, there := s.names["gone"]; there {
		t.Error("a name that was withdrawn is back")
	}
}
