package lustre

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// runs are those of ranks of one campaign, one after the other.
type runs struct {
	*testing.T
	dir, local string
	fs         *vfstest.Fault
	*Tier
}

func newRuns(t *testing.T) *runs {
	r := &runs{T: t, dir: t.TempDir(), local: filepath.Join(onNode(t), "index"), fs: vfstest.NewFault(vfs.OS{})}
	t.Cleanup(r.end)
	return r
}

// onNode returns a directory for an index, which must not lie on Lustre as the others may.
func onNode(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "lustre-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (r *runs) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// begin starts a run of a rank, of which rank 0 has a catalogue.
func (r *runs) begin(rank uint32, incarnation uint64) {
	r.Helper()
	r.open(rank, incarnation)
	r.must(r.Recover(func(tiers.Entry) error { return nil }))
}

// open is begin without what the run recovers.
func (r *runs) open(rank uint32, incarnation uint64) {
	r.Helper()
	var err error
	r.Tier, err = Open(Options{
		Dir: r.dir, Rank: rank, Incarnation: incarnation, OwnOnly: true, Catalogued: rank == 0, SegmentBlocks: 2, FS: r.fs, Patience: time.Minute,
	})
	r.must(err)
	if rank == 0 {
		r.must(r.OpenCatalogue(IndexOptions{Dir: r.local, Campaign: "test", CacheBytes: 8 << 20, MemTableBytes: 1 << 20}))
	}
}

func (r *runs) end() {
	if r.Tier != nil {
		r.must(r.Close())
		r.Tier = nil
	}
}

// next starts the next run of rank 0 in place of the last.
func (r *runs) next(incarnation uint64) {
	r.Helper()
	r.end()
	r.begin(0, incarnation)
}

// round brings the catalogue up to date with all other ranks.
func (r *runs) round() tiers.Taken {
	r.Helper()
	all, err := r.Parts(r.Context())
	r.must(err)
	var parts []tiers.Part
	for _, p := range all {
		if p.Rank != 0 {
			parts = append(parts, p)
		}
	}
	got, err := r.Tier.Catalogue().AdoptParts(r.Context(), parts, nil)
	r.must(err)
	return got
}

// put stores a block of its own for a name, "" for none, and returns its id.
func (r *runs) put(key string, seq uint64) block.ID {
	r.Helper()
	return r.putAs(key, seq, key, seq)
}

// putAs stores the block that put makes of a key and a seq for another name.
func (r *runs) putAs(key string, seq uint64, of string, ofSeq uint64) block.ID {
	r.Helper()
	data := bytes.Repeat([]byte(fmt.Sprintf("%-8s%8d", of, ofSeq)), 600)
	it := tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, data), Size: int64(len(data)), CRC: block.CRC(data)}, Data: data}
	if key != "" {
		it.Names = []block.Name{{Namespace: "ns", Key: key, Seq: seq}}
	}
	r.must(r.Put(r.Context(), it))
	return it.Info.ID
}

// merge does what a rank does every few seconds.
func (r *runs) merge() {
	r.Helper()
	for _, f := range r.Spilled() {
		if f.Wasted {
			r.reload(f)
		}
	}
	_, err := r.Merge(r.Context(), 0, func([]block.ID) {})
	r.must(err)
}

// reload reads a file again, and evicts what nobody names.
func (r *runs) reload(f tiers.SpilledFile) {
	r.Helper()
	var dead []block.ID
	r.must(r.Reload(r.Context(), f, func(e tiers.Entry) error {
		if len(e.Names) == 0 {
			dead = append(dead, e.Info.ID)
		}
		return nil
	}))
	for _, id := range dead {
		r.must(r.Evict(id))
	}
}

// spillAll leaves what it can to the catalogue.
func (r *runs) spillAll() {
	r.Helper()
	for more := true; more; {
		var err error
		more, err = r.Spill(r.Context(), func([]block.ID) bool { return true })
		r.must(err)
	}
}

// files lists the segments of a run of rank 0.
func (r *runs) files(incarnation uint64) []string {
	r.Helper()
	files, err := filepath.Glob(filepath.Join(r.dir, filepath.Dir(segment.Path(tiers.Part{Incarnation: incarnation}, 0)), "*.bin"))
	r.must(err)
	return files
}

// until waits for what goes on in the background.
func (r *runs) until(what string, is func() bool) {
	r.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("not so after a minute: %s", what)
		}
	}
}

// leaveWithdrawal leaves a file of run 1 that only the catalogue knows and in which there is
// nothing but withdrawals, one for each of names.
func (r *runs) leaveWithdrawal(withdraw func()) (file string) {
	r.Helper()
	filler := []block.ID{r.put("", 1)}
	withdraw()
	filler = append(filler, r.put("", 2))
	r.must(r.Sync(r.Context()))
	r.put("stays", 30) // the file of the withdrawal is done
	for _, id := range filler {
		r.must(r.Evict(id))
	}
	before := r.files(1)
	r.merge()
	r.until("the file of the withdrawal is gone", func() bool { return len(r.files(1)) == len(before) })
	r.spillAll()
	for _, f := range r.files(1) {
		if !slices.Contains(before, f) {
			file = f
		}
	}
	spilled := slices.ContainsFunc(r.Spilled(), func(f tiers.SpilledFile) bool { return filepath.Join(r.dir, f.Path) == file })
	if file == "" || !spilled {
		r.Fatalf("files %v, spilled %v", r.files(1), r.Spilled())
	}
	return file
}

// TestWithdrawalsOfEndedRuns: a file of an ended run in which nothing but withdrawals is
// left goes, though only the catalogue knows what is in it, and they with it when nothing
// needs them.
func TestWithdrawalsOfEndedRuns(t *testing.T) {
	r := newRuns(t)
	r.begin(0, 1)
	r.round()
	old := []block.ID{r.put("a", 10), r.put("b", 20)}
	left := r.leaveWithdrawal(func() { r.must(r.Unlink(old[0], block.Name{Namespace: "ns", Key: "a", Seq: 100})) })
	r.must(r.Unlink(old[1], block.Name{Namespace: "ns", Key: "b", Seq: 110}))
	r.must(r.Sync(r.Context()))
	r.reload(r.Spilled()[0])
	if got := r.Spilled(); len(got) != 1 || got[0].Wasted {
		t.Errorf("spilled %+v: what this run wrote is not in the way", got)
	}

	r.next(2)
	r.round()
	r.merge()
	r.until("they are gone from there", func() bool { return !r.there(left) })
	r.put("stays", 200)
	r.merge()
	r.until("the files of the ended run are gone", func() bool { return len(r.files(1)) == 0 })
	r.until("only the file that takes frames is there", func() bool { return len(r.files(2)) == 1 })
}

func (r *runs) there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestWithdrawalsThatAreNeeded: what hides a record of another rank that cannot be read for
// the moment moves along, and the name does not come back.
func TestWithdrawalsThatAreNeeded(t *testing.T) {
	for name, lost := range map[string]bool{"the index knew it": false, "the index is lost": true} {
		t.Run(name, func(t *testing.T) {
			r := newRuns(t)
			r.begin(1, 7)
			r.put("a", 10)
			r.put("b", 20)
			r.end()

			r.begin(0, 1)
			r.round()
			left := r.leaveWithdrawal(func() {
				hid, err := r.Tier.Catalogue().Withdraw(r.Context(), block.Name{Namespace: "ns", Key: "a", Seq: 100})
				r.must(err)
				if !hid[0] {
					t.Error("it hides nothing")
				}
			})

			r.end()
			if lost {
				r.must(os.RemoveAll(r.local))
			}
			r.fs.Add(vfstest.Rule{Op: vfs.OpReadDir, Path: "rank001", Err: vfs.ErrIO})
			r.begin(0, 2)
			for range 2 {
				if got := r.round(); len(got.Skipped) != 1 {
					t.Errorf("it can be read: %+v", got)
				}
				r.merge()
			}
			r.until("the file is gone", func() bool { return !r.there(left) })
			if len(r.files(2)) == 0 {
				t.Error("the withdrawal is gone")
			}

			r.end()
			r.must(os.RemoveAll(r.local))
			r.fs.Clear()
			r.begin(0, 3)
			r.round()
			got := r.Tier.Catalogue().Find("ns", []string{"a", "b"})
			if !got[0].Info.ID.IsZero() || got[1].Info.ID.IsZero() {
				t.Errorf("found %+v, of which the first was deleted", got)
			}
		})
	}
}

// TestWithdrawnAsOfItsPut: the names of an evicted block are withdrawn as of when they were put. The oldest name of a spilled
// file, of a block that was in another one, stays withdrawn when the file with the withdrawal is merged: a run that has
// lost its index does not have it back, though the bytes are put again.
func TestWithdrawnAsOfItsPut(t *testing.T) {
	r := newRuns(t)
	r.begin(0, 1)
	r.round()
	old := []block.ID{r.put("a", 10), r.put("b", 20)}
	r.must(r.Link(old[0], block.Name{Namespace: "ns", Key: "alias", Seq: 100}))
	r.put("c", 110)
	r.put("d", 120)
	filler := []block.ID{r.put("", 1)} // the file of the alias is done
	r.spillAll()
	r.reload(r.Spilled()[0])
	r.withdraw("a", 11)
	r.withdraw("alias", 101)
	r.withdraw("b", 21)
	filler = append(filler, r.put("", 2))
	r.must(r.Sync(r.Context()))
	r.put("e", 150) // that of the withdrawals is
	before := r.files(1)
	for _, id := range append(old, filler...) {
		r.must(r.Evict(id))
	}
	r.round()
	r.until("the files of evicted blocks are gone", func() bool {
		r.merge() // one passes over a file that is in use
		return !r.there(before[0]) && !r.there(before[2])
	})
	r.end()
	r.must(os.RemoveAll(r.local))
	r.begin(0, 2)
	r.round()
	r.putAs("again", 200, "a", 10)
	if got := r.Tier.Catalogue().Find("ns", []string{"alias"}); !got[0].Info.ID.IsZero() {
		t.Errorf("a name that was withdrawn is found: %+v", got[0])
	}
	r.wantNames("again", "c", "d", "e")
}

// TestNamelessBlocks: a file that only the catalogue knows is worth reloading if half of its blocks have no name in it, also
// where it has none at all that could turn out to stand for nothing: their names lay in another file.
func TestNamelessBlocks(t *testing.T) {
	for named := range 3 {
		r := newRuns(t)
		r.begin(0, 1)
		r.round()
		for i := range 2 { // which is a file
			key := ""
			if i < named {
				key = fmt.Sprint("k", i)
			}
			r.put(key, uint64(1+i))
		}
		r.put("more", 10)
		r.spillAll()
		if got := r.Spilled(); len(got) != 1 || got[0].Blocks != 2 || got[0].Names != named || got[0].Wasted != (named < 2) {
			t.Errorf("%d of 2 blocks have names: spilled %+v", named, got)
		}
		r.end()
	}
}

// TestLinkAtAnothersPlace: what is a copy of a block in another rank's file is no copy of what lies here, also where this rank has the
// block too: its name is not recorded for that.
func TestLinkAtAnothersPlace(t *testing.T) {
	r := newRuns(t)
	r.begin(0, 1)
	r.round()
	id := r.put("a", 1)
	here, err := r.Segment(id)
	r.must(err)
	there := here
	there.Path = segment.Path(tiers.Part{Rank: 3, Incarnation: 1}, 0)
	n := block.Name{Namespace: "ns", Key: "b", Seq: 2}
	if err := r.LinkAt(there, id, n); !errors.Is(err, tiers.ErrNotFound) {
		t.Errorf("in another's file: %v", err)
	}
	if err := r.LinkAt(here, id, n); err != nil {
		t.Errorf("in a file of its own: %v", err)
	}
	r.put("more", 3) // the file is done
	r.put("more", 4)
	r.spillAll()
	n.Seq = 5
	if err := r.LinkAt(here, id, n); err != nil {
		t.Errorf("in one that is spilled: %v", err)
	}
}

// TestWithdrawnWhileTheIndexIsFilled: a name that is to be withdrawn while the index, which broke, does not have this rank's files yet is
// withdrawn once it has.
func TestWithdrawnWhileTheIndexIsFilled(t *testing.T) {
	r := newRuns(t)
	r.begin(3, 1)
	r.put("of another", 7) // whose files a round reads first
	r.end()
	r.begin(0, 1)
	for i, key := range []string{"a", "b", "more", "last"} {
		r.put(key, uint64(1+10*i))
	}
	r.spillAll()
	r.next(2)
	r.breakIndex()
	r.beginAnew()
	withdraw := func() error {
		_, err := r.Tier.Catalogue().Withdraw(t.Context(), block.Name{Namespace: "ns", Key: "a", Seq: 5})
		return err
	}
	if err := withdraw(); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("while files are missing: %v", err)
	}
	r.round()
	r.must(withdraw())
	r.must(r.Sync(t.Context()))
	r.round()
	f := r.Tier.Catalogue().Find("ns", []string{"a", "b"})
	if !f[0].Info.ID.IsZero() || f[1].Info.ID.IsZero() {
		t.Errorf("a, which was withdrawn: %v; b: %v", f[0].Info.ID, f[1].Info.ID)
	}
}
