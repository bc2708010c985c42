package segment

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/space"
	"cascadekv/tiers"
)

// cutSegment ends the segment that takes frames.
func cutSegment(t *testing.T, s *opened) {
	t.Helper()
	f := s.use()
	defer s.unuse(f)
	s.detach(f)
	if err := f.seal(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f.size = f.w.Off
}

// interleaved puts a block of each of some chains into each of n segments; the chains
// of one segment go on in every second one after it. It returns the blocks by chain.
func interleaved(t *testing.T, s *opened, n, size int) (chains [][]tiers.Item) {
	t.Helper()
	const each = 4
	chains = make([][]tiers.Item, 2*each)
	for i := range n {
		var items []tiers.Item
		for j := range each {
			c := i%2*each + j
			at := len(chains[c])
			seq := uint64(10 * (i*each + j + 1))
			name := block.Name{Namespace: "ns", Key: fmt.Sprintf("%d.%d", c, at), Depth: uint32(at), Seq: seq}
			if at > 0 {
				name.Parent = fmt.Sprintf("%d.%d", c, at-1)
			}
			it := testItem(seq, size, name)
			items = append(items, it)
			chains[c] = append(chains[c], it)
		}
		put(t, s, items...)
		cutSegment(t, s)
	}
	return chains
}

// wantAllNamed reopens a store and checks that every block has its bytes and name.
func wantAllNamed(t *testing.T, where string, s *opened, chains [][]tiers.Item) {
	t.Helper()
	for _, it := range slices.Concat(chains...) {
		got, err := read(t.Context(), s, it)
		if err != nil || string(got) != string(it.Data) || s.names[it.Names[0].Key] != it.Info.ID {
			t.Errorf("%s: block %s: right bytes %v, name %v, error %v", where, it.Names[0].Key, string(got) == string(it.Data), s.names[it.Names[0].Key], err)
		}
	}
}

// TestMaxFiles: above the bound small segments are rewritten into one, those of the
// same chains together, each chain in one piece, until there is nothing to gain.
func TestMaxFiles(t *testing.T) {
	const n, size = 40, 20_000
	for name, c := range map[string]struct {
		most, blocks int
		want         []int // blocks moved by each merge
	}{
		"off":                        {0, 0, []int{0}},
		"as many as may be":          {n, 0, []int{0}},
		"one more":                   {n - 1, 0, []int{4 * n, 0}},
		"half of the chains at once": {20, 82, []int{2 * n, 2 * n, 0}},
		"enough with half of them":   {21, 82, []int{2 * n, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			options := func(incarnation uint64) Options {
				o := small(dir, incarnation)
				o.SegmentBytes, o.SegmentBlocks, o.MaxFiles = 16<<20, c.blocks, c.most
				return o
			}
			s := openStore(t, options(1))
			chains := interleaved(t, s, n, size)
			before := s.Usage()
			files := n
			for i, want := range c.want {
				m := merged(t, s, 0)
				if int(m.Blocks) != want || want > 0 && m.Segments != uint64(want/4) {
					t.Errorf("merge %d of blocks %d: %+v", i, want, m)
				}
				if want > 0 {
					files -= want/4 - 1
				}
			}
			if s.fileCount() != files || len(segments(t, dir)) != files || c.most > 0 && files > c.most {
				t.Errorf("%d files, %d are known, want %d", len(segments(t, dir)), s.fileCount(), files)
			}
			t.Logf("%d files of %d bytes became %d of %d; %d bytes written", n, before.Used, files, s.Usage().Used, s.Merged().Written)
			if files <= 2 {
				wantInPieces(t, s, chains)
			}
			closeStore(t, s)
			wantAllNamed(t, "after a restart", openStore(t, options(2)), chains)
		})
	}
}

// wantInPieces: the blocks of each chain lie in one file, each behind the one before.
func wantInPieces(t *testing.T, s *opened, chains [][]tiers.Item) {
	t.Helper()
	type place struct {
		path string
		off  int64
		key  string
	}
	var all []place
	for _, it := range slices.Concat(chains...) {
		path, off := s.where(t, it.Info.ID)
		all = append(all, place{path, off, it.Names[0].Key})
	}
	slices.SortFunc(all, func(a, b place) int {
		if a.path != b.path {
			return strings.Compare(a.path, b.path)
		}
		return int(a.off - b.off)
	})
	var want string
	for i, p := range all {
		if want != "" && p.key != want || i > 0 && want != "" && p.path != all[i-1].path {
			t.Errorf("%s lies in %s where %s belongs", p.key, p.path, want)
		}
		var chain, at int
		fmt.Sscanf(p.key, "%d.%d", &chain, &at)
		if want = fmt.Sprintf("%d.%d", chain, at+1); at+1 == len(chains[chain]) {
			want = ""
		}
	}
}

// TestMaxFilesOfManyNames: names that take more room than blocks, in several frames,
// count for what fits into one file, and are not merged for ever.
func TestMaxFilesOfManyNames(t *testing.T) {
	const n = 30
	o := small(t.TempDir(), 1)
	o.SegmentBytes, o.Compress, o.MaxFiles = mergeBatch+4<<20, false, 1
	s := openStore(t, o)
	var all []tiers.Item
	for i := range n {
		var names []block.Name
		for j := range 200 {
			names = append(names, testName(fmt.Sprint(i, j, strings.Repeat("x", 400)), uint64(1000*i+2*j+10)))
		}
		all = append(all, testItem(uint64(i), 600_000, names...))
		put(t, s, all[i])
		cutSegment(t, s)
	}
	for turn := 0; ; turn++ {
		m := merged(t, s, 0)
		if m == (tiers.Merged{}) {
			break
		}
		if m.Written > uint64(o.SegmentBytes)*9/8 || turn > 3 {
			t.Fatalf("turn %d: %+v", turn, m)
		}
	}
	if files := s.fileCount(); files != 2 {
		t.Errorf("%d files are left", files)
	}
	wantBytes(t, s, all...)
}

// TestMaxFilesWithoutRoom: it frees nothing, so it does not begin on a full file system.
func TestMaxFilesWithoutRoom(t *testing.T) {
	s, _, free, now := nearlyFull(t, func(o *Options) { o.MaxFiles = 3 })
	chains := interleaved(t, s, 6, 30_000) // most of which is blocks, so that room alone is no reason to move them
	*free, *now = 400<<10, now.Add(space.LookEvery)
	wantErr(t, "Put below the low mark", s.Put(t.Context(), testItem(901, 2000)), tiers.ErrFull)
	if m := merged(t, s, 0); m != (tiers.Merged{}) {
		t.Errorf("without room: %+v", m)
	}
	*free = 10 << 20
	if m := merged(t, s, 0); m.Segments != 6 {
		t.Errorf("with room: %+v", m)
	}
	wantBytes(t, s, slices.Concat(chains...)...)
}

// TestMaxFilesKeepsDead: what is dead is not moved, a withdrawn name stays so.
func TestMaxFilesKeepsDead(t *testing.T) {
	o := small(t.TempDir(), 1)
	o.MaxFiles = 3
	s := openStore(t, o)
	chains := interleaved(t, s, 8, 20_000)
	gone := chains[0][1]
	if err := s.Evict(gone.Info.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.Unlink(block.ID{}, chains[1][1].Names[0]); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m := merged(t, s, 0); m.Segments != 8 || m.Blocks != 31 {
		t.Errorf("%+v", m)
	}
	closeStore(t, s)
	again := o
	again.Incarnation = 2
	s = openStore(t, again)
	if _, there := s.blocks[gone.Info.ID]; there || len(s.blocks) != 31 {
		t.Errorf("%d blocks are back", len(s.blocks))
	}
	if _, there := s.names[chains[1][1].Names[0].Key]; there {
		t.Error("a name that was withdrawn is back")
	}
}

// TestMaxFilesCrash ends the process, the node or the power before each operation of such
// a merge, and then of the next run's: every block and name is there.
func TestMaxFilesCrash(t *testing.T) {
	t.Parallel()
	crash := vfstest.NewCrash()
	var chains [][]tiers.Item
	points, begun := 0, false
	options := func(fs vfs.FS, incarnation uint64) Options {
		o := crashOptions(fs, incarnation)
		o.SegmentBytes, o.MaxFiles = 1<<20, 2
		return o
	}
	fs := crash.Watch(serial(func(call vfs.Call) {
		if !begun || !changes(call) {
			return
		}
		points++
		for seed := range uint64(3) {
			for _, cut := range []vfstest.Cut{vfstest.CutPower, vfstest.CutNode, vfstest.CutProcess} {
				where := fmt.Sprintf("before %s %s, cut %d, seed %d", call.Op, call.Path, cut, seed)
				next := openStore(t, options(crash.After(cut, uint64(points)*10+seed), 2))
				wantAllNamed(t, where, next, chains)
				for turns := 0; merged(t, next, 0).Segments > 0; turns++ {
					if turns > 10 {
						t.Fatalf("%s: there is always more to merge", where)
					}
				}
				if n := next.fileCount(); n > 2 {
					t.Errorf("%s: %d files are left", where, n)
				}
				wantAllNamed(t, where+", merged", next, chains)
				closeStore(t, next)
			}
		}
	}))
	s := openStore(t, options(fs, 1))
	chains = interleaved(t, s, 8, 5000)
	settleDown(s)
	begun = true
	if m := merged(t, s, 0); m.Segments != 8 {
		t.Errorf("%+v", m)
	}
	if begun = false; points < 10 {
		t.Errorf("a merge of eight files had %d points", points)
	}
	wantBytes(t, s, slices.Concat(chains...)...)
}

// TestMaxFilesFails: an error anywhere leaves everything readable, and the next merge
// does the rest.
func TestMaxFilesFails(t *testing.T) {
	failed := 0
	for n := range 90 {
		dir := t.TempDir()
		options := func(incarnation uint64) Options {
			o := small(dir, incarnation)
			o.MaxFiles, o.SegmentBlocks = 3, 18
			return o
		}
		o := options(1)
		fault := vfstest.NewFault(vfs.OS{})
		o.FS = fault
		s := openStore(t, o)
		chains := interleaved(t, s, 8, 5000)
		fault.Add(vfstest.Rule{After: n, Count: 1, Bytes: 5000, Err: vfs.ErrIO})
		if _, err := s.Merge(t.Context(), 0, s.tell); err != nil {
			failed++
		}
		settleDown(s)
		fault.Clear()
		wantBytes(t, s, slices.Concat(chains...)...)
		for turns := 0; merged(t, s, 0).Segments > 0; turns++ {
			if turns > 10 {
				t.Fatal("there is always more to merge")
			}
		}
		if closeStore(t, s); len(segments(t, dir)) > 4 { // one may stay that could not be unlinked
			t.Errorf("failure %d: %d files", n, len(segments(t, dir)))
		}
		wantAllNamed(t, fmt.Sprint("failure ", n), openStore(t, options(2)), chains)
	}
	if t.Logf("of 90 failures at one operation each %d ended the merge", failed); failed < 10 {
		t.Error("few failures were seen")
	}
}
