package catalogue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/index"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

var ctx = context.Background()

// rig is rank 0 of a campaign with its catalogue.
type rig struct {
	*Catalogue
	t     *testing.T
	dir   string // of the campaign
	local string // of the catalogue
	store *segment.Store
	now   time.Time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), local: filepath.Join(t.TempDir(), "index"), now: time.Unix(1_700_000_000, 0)}
	r.open()
	t.Cleanup(func() { r.close() })
	return r
}

// rank opens the store of a rank.
func (r *rig) rank(number uint32) *segment.Store {
	r.t.Helper()
	s, err := segment.Open(segment.Options{Dir: r.dir, Rank: number, OwnOnly: true, Catalogued: number == 0, Direct: segment.Off, Uring: segment.Off})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := s.Recover(func(tiers.Entry) error { return nil }); err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) open() {
	r.t.Helper()
	r.store = r.rank(0)
	var err error
	r.Catalogue, err = Open(Options{Store: r.store, Index: index.Options{
		Dir: r.local, Campaign: "test", CacheBytes: 8 << 20, MemTableBytes: 1 << 20, Now: func() time.Time { return r.now },
	}})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) close() {
	r.t.Helper()
	if r.Catalogue == nil {
		return
	}
	if err := errors.Join(r.Catalogue.Close(), r.store.Close()); err != nil && !errors.Is(err, index.ErrBroken) {
		r.t.Error(err)
	}
	r.Catalogue = nil
}

func (r *rig) restart() {
	r.t.Helper()
	r.close()
	r.open()
}

// round takes in the parts of all other ranks.
func (r *rig) round() tiers.Taken {
	r.t.Helper()
	all, err := r.store.Parts(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	var parts []tiers.Part
	for _, p := range all {
		if p.Rank != 0 {
			parts = append(parts, p)
		}
	}
	got, err := r.AdoptParts(ctx, parts, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

func data(n int) []byte { return bytes.Repeat([]byte{byte(n), byte(n >> 8), 7}, 100) }

func key(n int) string { return fmt.Sprintf("key%06d", n) }

// item is block n of a chain, as put at seq.
func item(n int, content []byte, seq uint64) tiers.Item {
	name := block.Name{Namespace: "model", Key: key(n), Depth: uint32(n), Seq: seq}
	if n > 0 {
		name.Parent = key(n - 1)
	}
	return tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, content), Size: int64(len(content)), CRC: block.CRC(content)}, Names: []block.Name{name}, Data: content}
}

func put(t *testing.T, s *segment.Store, items ...tiers.Item) {
	t.Helper()
	if err := s.Put(ctx, items...); err != nil {
		t.Fatal(err)
	}
}

// leave has a rank leave blocks of a chain in a sealed segment.
func (r *rig) leave(rank uint32, from, to int, seq uint64) {
	r.t.Helper()
	s := r.rank(rank)
	for n := from; n < to; n++ {
		put(r.t, s, item(n, data(n), seq+uint64(n)))
	}
	r.closed(s)
}

func (r *rig) closed(s *segment.Store) {
	r.t.Helper()
	if err := s.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// wants checks that exactly the blocks for which content is not nil are found,
// whole.
func (r *rig) wants(from, to int, content func(int) []byte) {
	r.t.Helper()
	var keys []string
	for n := from; n < to; n++ {
		keys = append(keys, key(n))
	}
	present := r.Probe("model", keys)
	for i, f := range r.Find("model", keys) {
		n, want := from+i, content(from+i)
		if is := (tiers.Presence{Found: want != nil, Bound: f.Name.Bound, Size: f.Info.Size, Seq: f.Name.Seq}); want != nil && present[i] != is || want == nil && present[i].Found {
			r.t.Errorf("block %d: a probe finds %+v, want %+v", n, present[i], is)
		}
		if want == nil {
			if !f.Info.ID.IsZero() {
				r.t.Errorf("block %d is found, put at %d", n, f.Name.Seq)
			}
			continue
		}
		if f.Info.ID != block.Sum(block.Bits128, want) {
			r.t.Errorf("block %d: found %v of seq %d", n, f.Info.ID, f.Name.Seq)
			continue
		}
		if n > 0 && (f.Name.Parent != key(n-1) || f.Name.Depth != uint32(n) || f.Name.Namespace != "model") {
			r.t.Errorf("block %d: %+v", n, f.Name)
		}
		got := make([]byte, f.Info.Size)
		if err := r.store.ReadSegment(ctx, f.Segment, f.Info, got); err != nil || !bytes.Equal(got, want) {
			r.t.Errorf("block %d: read %v", n, err)
		}
	}
}

func none(int) []byte { return nil }

// names returns the keys that a walk sees.
func (r *rig) names(fresh bool) map[string]bool {
	r.t.Helper()
	all := map[string]bool{}
	if err := r.Names(fresh, func(f tiers.Found) bool { all[f.Name.Namespace+"/"+f.Name.Key] = true; return true }); err != nil {
		r.t.Fatal(err)
	}
	return all
}

// TestSurvivesRestarts: what others left is found with right bytes, nothing of
// it before the first round, and a second start reads no footer again.
func TestSurvivesRestarts(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 40, 100)
	r.leave(2, 40, 60, 100)
	r.wants(0, 60, none)
	if got := r.round(); got.Read != 2 || got.Blocks != 60 || got.Names != 60 || !got.Fresh || len(got.Skipped) != 0 {
		t.Errorf("first round: %+v", got)
	}
	r.wants(0, 60, data)
	if n := len(r.names(true)); n != 60 {
		t.Errorf("%d fresh names", n)
	}
	if got := r.round(); got.Read != 0 || got.Fresh {
		t.Errorf("second round: %+v", got)
	}
	r.restart()
	r.wants(0, 60, none)
	if got := r.round(); got.Read != 0 || !got.Fresh {
		t.Errorf("after a restart: %+v", got)
	}
	r.wants(0, 60, data)
	if names := r.names(true); len(names) != 60 || !names["model/"+key(59)] {
		t.Errorf("%d names after a restart", len(names))
	}
	r.leave(3, 60, 70, 100)
	if got := r.round(); got.Read != 1 || len(r.names(true)) != 10 || len(r.names(false)) != 70 {
		t.Errorf("one more part: %+v, %d names fresh", got, len(r.names(true)))
	}
}

// TestLostIndex: an index that is deleted, or damaged, is filled again.
func TestLostIndex(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, dir string){
		"deleted": func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		},
		"damaged": func(t *testing.T, dir string) {
			tables, _ := filepath.Glob(filepath.Join(dir, "base-*", "*"))
			if len(tables) == 0 {
				t.Fatal("no tables")
			}
			for _, path := range tables {
				if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.leave(1, 0, 40, 100)
			r.round()
			r.close()
			harm(t, r.local)
			r.open()
			if got := r.round(); got.Read != 1 {
				t.Errorf("%+v", got)
			}
			r.wants(0, 40, data)
		})
	}
}

// TestBrokenAtRunTime: an index whose disk is gone is a miss until the next
// round.
func TestBrokenAtRunTime(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 40, 100)
	r.round()
	if err := os.RemoveAll(r.local); err != nil {
		t.Fatal(err)
	}
	r.leave(2, 40, 60, 100)
	all, _ := r.store.Parts(ctx)
	if _, err := r.AdoptParts(ctx, all, nil); !errors.Is(err, tiers.ErrUnavailable) || r.Err() == nil {
		t.Fatalf("a round without a disk: %v, index %v", err, r.Err())
	}
	r.wants(0, 60, none)
	if err := os.MkdirAll(r.local, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := r.round(); got.Read != 2 || r.Err() != nil {
		t.Errorf("%+v, %v", got, r.Err())
	}
	r.wants(0, 60, data)
}

// TestFilesThatGo: segments that are unlinked are forgotten, and parts that are
// left out are not shown, and forgotten when they are left out again.
func TestFilesThatGo(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 10, 100)
	r.leave(2, 10, 20, 100)
	r.round()
	files, _ := filepath.Glob(filepath.Join(r.dir, "rank001-*", "*.bin"))
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.round(); got.Gone != len(files) || len(files) == 0 {
		t.Errorf("%d of %d segments are gone", got.Gone, len(files))
	}
	r.wants(0, 10, none)
	r.wants(10, 20, data)
	for turn, gone := range []int{0, 1} {
		got, err := r.AdoptParts(ctx, nil, nil)
		if err != nil || got.Gone != gone {
			t.Errorf("left out, turn %d: %+v, %v", turn, got, err)
		}
		r.wants(0, 20, none)
	}
	if got := r.round(); got.Read != 1 {
		t.Errorf("a part that was forgotten: %+v", got)
	}
	r.wants(10, 20, data)
}

// TestUnsealed: of a segment that is being written counts what is there.
func TestUnsealed(t *testing.T) {
	r := newRig(t)
	other := r.rank(1)
	put(t, other, item(0, data(0), 100))
	if got := r.round(); got.Read != 1 {
		t.Errorf("%+v", got)
	}
	r.wants(0, 2, func(n int) []byte { return [][]byte{data(0), nil}[n] })
	if got := r.round(); got.Read != 0 {
		t.Errorf("nothing new: %+v", got)
	}
	put(t, other, item(1, data(1), 101))
	if got := r.round(); got.Read != 1 || len(r.names(true)) != 2 {
		t.Errorf("one more: %+v", got)
	}
	r.closed(other)
	if got := r.round(); got.Read != 1 {
		t.Errorf("sealed: %+v", got)
	}
	r.wants(0, 2, data)
	if got := r.round(); got.Read != 0 {
		t.Errorf("sealed before: %+v", got)
	}
}

// TestNewestCounts: of several records of a name, in whatever parts, the newest
// is found, be it a withdrawal.
func TestNewestCounts(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 3, 100)
	other := r.rank(2)
	newer := item(0, data(1000), 500)
	put(t, other, newer, item(1, data(1001), 50)) // older than what rank 1 has
	if err := other.Unlink(block.ID{}, block.Name{Namespace: "model", Key: key(2), Seq: 500}); err != nil {
		t.Fatal(err)
	}
	r.closed(other)
	r.round()
	r.wants(0, 3, func(n int) []byte { return [][]byte{data(1000), data(1), nil}[n] })
	expiring := item(3, data(3), 100)
	expiring.Names[0].Expires = r.now.Add(time.Minute)
	third := r.rank(3)
	put(t, third, expiring)
	r.closed(third)
	r.round()
	r.wants(3, 4, data)
	r.now = r.now.Add(time.Hour)
	r.wants(3, 4, none)
}

// TestWithdrawn: what was put or deleted here later does not come back: not
// after restarts, not when the index is lost or forgets, not after a merge.
func TestWithdrawn(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 4, 100)
	r.round()
	want := func(n int) []byte {
		if n == 1 || n == 2 {
			return nil
		}
		return data(n)
	}
	gone := func(n int) block.Name { return block.Name{Namespace: "model", Key: key(n), Seq: 1000} }
	older := gone(0)
	older.Seq = 100 // what is there was put then
	if _, err := r.Withdraw(ctx, older, gone(1), gone(2), gone(77)); err != nil {
		t.Fatal(err)
	}
	r.wants(0, 4, want)
	for n := range 4 { // so that there is something to merge
		put(t, r.store, tiers.Item{Info: item(100+n, data(100+n), 2000).Info, Data: data(100 + n)})
	}
	r.restart()
	r.round()
	r.wants(0, 4, want)
	for n := range 4 {
		if err := r.store.Evict(item(100+n, data(100+n), 0).Info.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.store.Merge(ctx, 1, func([]block.ID) {}); err != nil {
		t.Fatal(err)
	}
	r.close()
	if err := os.RemoveAll(r.local); err != nil {
		t.Fatal(err)
	}
	r.open()
	if got := r.round(); got.Read != 1 {
		t.Errorf("%+v", got)
	}
	r.wants(0, 4, want)
}

// TestWithdrawnAndForgotten: an index that lost its last changes, as after a
// crash, is told again by the store's own records.
func TestWithdrawnAndForgotten(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 3, 100)
	r.round()
	r.close()
	before := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(before, os.DirFS(r.local)); err != nil {
		t.Fatal(err)
	}
	r.open()
	r.round()
	if _, err := r.Withdraw(ctx, block.Name{Namespace: "model", Key: key(1), Seq: 1000}); err != nil {
		t.Fatal(err)
	}
	r.close()
	if err := errors.Join(os.RemoveAll(r.local), os.CopyFS(r.local, os.DirFS(before))); err != nil {
		t.Fatal(err)
	}
	r.open()
	if got := r.round(); got.Read != 0 {
		t.Errorf("%+v", got)
	}
	r.wants(0, 3, func(n int) []byte { return [][]byte{data(0), nil, data(2)}[n] })
}

// TestWithdrawalsThatHideNothing are not kept for ever.
func TestWithdrawalsThatHideNothing(t *testing.T) {
	r := newRig(t)
	for n := range 4 {
		put(t, r.store, item(n, data(n), 100))
		if err := r.store.Unlink(block.ID{}, block.Name{Namespace: "model", Key: key(n), Seq: 200}); err != nil {
			t.Fatal(err)
		}
	}
	r.restart()
	for n := range 4 {
		if err := r.store.Evict(item(n, data(n), 0).Info.ID); err != nil {
			t.Fatal(err)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(r.dir, "rank000-*", "*.bin")); len(files) == 0 {
		t.Fatal("withdrawn names are not kept until it is known what they hide")
	}
	r.round()
	deadline := time.Now().Add(20 * time.Second)
	for {
		files, _ := filepath.Glob(filepath.Join(r.dir, "rank000-*", "*.bin"))
		if len(files) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v are still there", files)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestNothingOnTheHeap: names cost the index's caches, not the heap. A map of
// them, as the store has of its own, takes some 500 bytes a block.
func TestNothingOnTheHeap(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 200,000 blocks")
	}
	const blocks, each = 200_000, 2000
	r := newRig(t)
	other := r.rank(1)
	for n := 0; n < blocks; n += each {
		items := make([]tiers.Item, 0, each)
		for i := range each {
			content := fmt.Appendf(nil, "block %d", n+i)
			items = append(items, item(n+i, content, uint64(1000+n+i)))
		}
		put(t, other, items...)
	}
	r.closed(other)
	other = nil
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	if got := r.round(); got.Names != blocks {
		t.Fatalf("%+v", got)
	}
	if grown := heap() - before; grown > 32<<20 {
		t.Errorf("%d names take %d MiB of heap", blocks, grown>>20)
	} else {
		t.Logf("%d names take %d KiB of heap", blocks, grown>>10)
	}
	content := func(n int) []byte { return fmt.Appendf(nil, "block %d", n) }
	r.wants(150_000, 150_100, content)
}

func FuzzNote(f *testing.F) {
	f.Add("")
	f.Add(note(index.NamespaceOf("n"), block.Name{Namespace: "n", Key: "k", Parent: "p"}))
	f.Fuzz(func(t *testing.T, text string) {
		_, key, parent, ok := cutNote(text)
		if ok && len(key)+len(parent) > len(text) {
			t.Error("more than there is")
		}
		if isNoteOf([]byte(text), key) != ok || isNoteOf([]byte(text), key+"x") {
			t.Errorf("the key of %q is %q", text, key)
		}
		n := block.Name{Namespace: "model", Key: key, Parent: parent}
		ns, k, p, ok := cutNote(note(index.NamespaceOf(n.Namespace), n))
		if !ok || k != key || p != parent || ns != index.NamespaceOf("model") {
			t.Errorf("%q, %q become %q, %q", key, parent, k, p)
		}
	})
}

// TestUnreadable: a directory that cannot be listed, and a file that is none,
// cost what is in them and nothing else; what was known before stays.
func TestUnreadable(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 10, 100)
	r.leave(2, 10, 20, 100)
	r.round()
	dirs, _ := filepath.Glob(filepath.Join(r.dir, "rank001-*"))
	if err := errors.Join(os.Rename(dirs[0], dirs[0]+".away"), os.WriteFile(dirs[0], nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	r.leave(3, 20, 30, 100)
	files, _ := filepath.Glob(filepath.Join(r.dir, "rank003-*", "*.bin"))
	if err := os.WriteFile(files[0], []byte("no segment"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, refused := r.round(), r.store.Refused(); len(got.Skipped) != 1 || got.Gone != 0 || refused.Files != 1 {
		t.Errorf("%+v, refused %+v; want the file among the skipped, and what is no directory counted", got, refused)
	}
	r.wants(10, 20, data)
	r.wants(20, 30, none)
	if err := errors.Join(os.Remove(dirs[0]), os.Rename(dirs[0]+".away", dirs[0])); err != nil {
		t.Fatal(err)
	}
	if got := r.round(); len(got.Skipped) != 1 || got.Read != 0 {
		t.Errorf("%+v", got)
	}
	r.wants(0, 20, data)
}

// stats is the state of a catalogue with that of its index.
type stats struct {
	index.Stats
	Parts  int
	Read   uint64
	Tuning *Tuning
}

func (r *rig) Stats() stats {
	return stats{r.index.Stats(), len(r.shown.Load().parts), r.read.Load(), r.tuning.Load()}
}

// A block that does not lie where it was found is forgotten there, and nowhere else.
func TestForget(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 3, 100)
	r.round()
	found := r.Find("model", []string{key(0), key(1), key(2)})
	found[0].Segment.Offset++
	found[2].Segment.Path = "../" + found[2].Segment.Path
	if err := r.Forget(ctx, found...); err != nil {
		t.Fatal(err)
	}
	r.wants(0, 3, func(n int) []byte {
		if n == 1 {
			return nil
		}
		return data(n)
	})
}
