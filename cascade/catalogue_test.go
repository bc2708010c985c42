package cascade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre"
	"cascadekv/tiers"
)

// campaign is a directory of segments that sessions of ranks share, one after
// the other, each at a later time.
type campaign struct {
	t     *testing.T
	dir   string
	local string       // of rank 0's catalogue
	late  atomic.Int64 // of the clock
	fs    vfs.FS       // nil: the machine's
}

func newCampaign(t *testing.T) *campaign {
	return &campaign{t: t, dir: t.TempDir(), local: filepath.Join(t.TempDir(), "index")}
}

func (c *campaign) now() time.Time { return time.Unix(1_800_000_000, c.late.Load()) }

func (c *campaign) later(d time.Duration) { c.late.Add(int64(d)) }

// session is one life of a rank in a campaign.
func (c *campaign) session(rank uint32, shmBytes int64, change ...func(*Options)) *rig {
	c.t.Helper()
	c.later(time.Hour)
	o := lustre.Options{Dir: c.dir, Rank: rank, OwnOnly: true, Catalogued: rank == 0, SegmentBytes: 1 << 20, FS: c.fs}
	cold, err := lustre.Open(o)
	if err != nil {
		c.t.Fatal(err)
	}
	if rank == 0 {
		err := cold.OpenCatalogue(lustre.IndexOptions{Dir: c.local, Campaign: c.dir, CacheBytes: 4 << 20, MemTableBytes: 1 << 20, Now: c.now})
		if err != nil {
			c.t.Fatal(err)
		}
	}
	r := newRig(c.t, shmBytes, false, func(o *Options) {
		o.Cold, o.Now = cold, c.now
		o.Log = slog.New(slog.DiscardHandler)
	}, func(o *Options) {
		for _, f := range change {
			f(o)
		}
	})
	return r
}

// end closes a rank, which may fail as one of but at most.
func (c *campaign) end(r *rig, but ...error) {
	c.t.Helper()
	checkInvariants(c.t, r.Store)
	err := r.Store.Close(context.Background())
	if err != nil && !slices.ContainsFunc(but, func(one error) bool { return errors.Is(err, one) }) {
		c.t.Fatal(err)
	}
}

// takeIn is a round of rank 0.
func (c *campaign) takeIn(r *rig) tiers.Taken {
	c.t.Helper()
	all, err := r.others.Parts(context.Background())
	if err != nil {
		c.t.Fatal(err)
	}
	var parts []tiers.Part
	for _, p := range all {
		if p.Rank != 0 {
			parts = append(parts, p)
		}
	}
	got, err := r.AdoptParts(context.Background(), parts)
	if err != nil || len(got.Skipped) > 0 {
		c.t.Fatal(err, got.Skipped)
	}
	return got
}

// TestCatalogueServes: a rank that is alone serves what three ranks left, chains
// in one piece, through a memory that holds a part of it; nothing of it is
// written again; a second start reads no footer.
func TestCatalogueServes(t *testing.T) {
	c := newCampaign(t)
	const each = 40
	var keys []string
	for rank := uint32(1); rank <= 3; rank++ {
		r := c.session(rank, 8<<20)
		r.chain(fmt.Sprint("of", rank, "."), 0, each, uint64(rank)*1000)
		for i := range each {
			keys = append(keys, fmt.Sprint("of", rank, ".", i))
		}
		c.end(r)
	}
	content := func(i int) []byte { return data(uint64(i/each+1)*1000+uint64(i%each), 30_000) }
	for start := range 2 {
		r := c.session(0, 4<<20)
		if n := r.Probe(t.Context(), "ns", keys[:each]).Hits; n != 0 {
			t.Errorf("%d hits before anything was taken in", n)
		}
		if got := c.takeIn(r); start == 0 && got.Read == 0 || start == 1 && got.Read != 0 {
			t.Errorf("start %d: %+v", start, got)
		}
		if p := r.Probe(t.Context(), "ns", append(append([]string(nil), keys[:each]...), "nothing")); p.Hits != each {
			t.Errorf("a probe hits %d of %d", p.Hits, each)
		}
		for turn := range 2 {
			for i, k := range keys {
				r.want(k, content(i))
			}
			for from := 0; from < len(keys); from += each {
				views, err := r.GetBatch(t.Context(), "ns", keys[from:from+20])
				if err != nil {
					t.Fatal(err)
				}
				for i, v := range views {
					if v == nil || string(v.Bytes()) != string(content(from+i)) {
						t.Errorf("turn %d: block %d of a batch is not what it was", turn, from+i)
						continue
					}
					v.Release()
				}
			}
		}
		if !r.Lease(t.Context(), "ns", keys[2*each+7], "me", time.Minute) || r.Lease(t.Context(), "ns", "nothing", "me", time.Minute) {
			t.Error("who leases does not see what a get does")
		}
		info, ok := r.Stat(t.Context(), "ns", keys[7])
		if !ok || info.Parent != keys[6] || info.Depth != 7 || !r.Contains(t.Context(), "ns", keys[each+5]) || r.Contains(t.Context(), "ns", "nothing") {
			t.Errorf("%+v", info)
		}
		st := r.Stats()
		if st.DirtyBlocks != 0 || st.Lost != 0 || st.Catalogue == nil || st.Catalogue.Broken != "" || st.Blocks > 140 {
			t.Errorf("%d dirty, %d lost of %d blocks; %+v", st.DirtyBlocks, st.Lost, st.Blocks, st.Catalogue)
		}
		c.end(r)
	}
	if own, _ := filepath.Glob(filepath.Join(c.dir, "rank000-*", "*")); len(own) != 0 {
		t.Errorf("what was only read is written again: %v", own)
	}
}

// TestCatalogueReadsTogether: a chain that another job left comes with few reads
// of its segments, also where blocks of it are damaged, which cost only
// themselves.
func TestCatalogueReadsTogether(t *testing.T) {
	const blocks = 120
	c := newCampaign(t)
	left := c.session(1, 8<<20)
	var batch []PutItem
	for i := range blocks {
		e := PutItem{Entry: Entry{Namespace: "ns", Key: fmt.Sprint("k", i)}, Data: data(uint64(i), 9000)}
		if i > 0 {
			e.Entry.Parent = fmt.Sprint("k", i-1)
		}
		batch = append(batch, e)
	}
	if _, err := left.PutBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	c.end(left)

	trace := vfstest.NewTrace(vfs.OS{}, c.dir)
	c.fs = trace
	r := c.session(0, 8<<20)
	c.takeIn(r)
	keys := make([]string, blocks)
	for i := range keys {
		keys[i] = batch[i].Entry.Key
	}
	bad := map[int]bool{}
	get := func() (reads int) {
		trace.Take()
		views, err := r.GetBatch(t.Context(), "ns", keys)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range views {
			if (v == nil) != bad[i] || v != nil && !bytes.Equal(v.Bytes(), batch[i].Data) {
				t.Errorf("block %d: there: %v, damaged: %v; or it has wrong bytes", i, v != nil, bad[i])
			}
			if v != nil {
				v.Release()
			}
		}
		return strings.Count(trace.Take(), "read ")
	}
	// Of two segments: the header, what leads to the blocks of each frame, and
	// the blocks.
	if n := get(); n == 0 || n > 20 {
		t.Errorf("%d reads for %d blocks", n, blocks)
	}
	c.end(r)
	segments, _ := filepath.Glob(filepath.Join(c.dir, "rank001-*", "*.bin"))
	for i := range batch {
		if i%50 != 7 {
			continue
		}
		for _, path := range segments {
			p, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if at := bytes.Index(p, batch[i].Data); at >= 0 {
				bad[i] = true
				p[at+4444] ^= 1
				if err := os.WriteFile(path, p, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	r = c.session(0, 8<<20)
	c.takeIn(r)
	if n := get(); len(bad) != 3 || n > 30 {
		t.Errorf("%d reads for %d blocks of which %d are damaged", n, blocks, len(bad))
	}
	if n := r.Stats().Corrupt; n != 3 {
		t.Errorf("%d corrupt blocks counted", n)
	}
	c.end(r)
}

// TestCatalogueNewestWins: what was put, deleted or cleared here later does not
// come back, after a restart, and after one that lost the index; what was put
// elsewhere later replaces what is here.
func TestCatalogueNewestWins(t *testing.T) {
	c := newCampaign(t)
	other := c.session(1, 8<<20)
	for i := range 6 {
		other.put(ns(fmt.Sprint(i)), data(uint64(i), 30_000))
	}
	other.put(Entry{Namespace: "gone", Key: "k"}, data(50, 1000))
	other.put(Entry{Namespace: "stays", Key: "k"}, data(51, 1000))
	c.end(other)

	r := c.session(0, 8<<20)
	r.put(ns("later"), data(60, 30_000))
	c.takeIn(r)
	r.put(ns("0"), data(100, 30_000)) // replaced
	if !r.Delete(t.Context(), "ns", "1") || r.Delete(t.Context(), "ns", "1") || r.Delete(t.Context(), "ns", "never") {
		t.Error("a name of the catalogue is there to be deleted, once")
	}
	r.want("2", data(2, 30_000))
	r.Delete(t.Context(), "ns", "2") // in memory
	r.put(ns("3"), data(103, 30_000))
	r.Delete(t.Context(), "ns", "3") // never was in a segment
	if n := r.Clear(t.Context(), "gone", false); n != 1 {
		t.Errorf("%d names cleared", n)
	}
	if !r.Expire(t.Context(), "ns", "4", c.now().Add(time.Minute)) || r.Expire(t.Context(), "ns", "never", c.now()) {
		t.Error("a name of the catalogue can be told to end")
	}
	check := func(r *rig) {
		t.Helper()
		want := map[string][]byte{"0": data(100, 30_000), "5": data(5, 30_000)}
		for i := range 6 {
			r.want(fmt.Sprint(i), want[fmt.Sprint(i)])
		}
		for space, there := range map[string]bool{"gone": false, "stays": true} {
			if r.Contains(t.Context(), space, "k") != there {
				t.Errorf("%s: there is %v", space, !there)
			}
		}
	}
	r.want("4", data(4, 30_000))
	c.later(2 * time.Minute)
	r.Sweep()
	check(r)
	c.end(r)

	again := c.session(1, 8<<20)
	again.put(ns("later"), data(61, 30_000))
	c.end(again)
	for range 2 {
		r = c.session(0, 8<<20)
		c.takeIn(r)
		check(r)
		r.want("later", data(61, 30_000))
		c.end(r)
		if err := os.RemoveAll(c.local); err != nil {
			t.Fatal(err)
		}
	}
	r = c.session(0, 8<<20)
	c.takeIn(r)
	check(r)
	r.want("later", data(61, 30_000))
}

// TestCatalogueHidesWhatWasReplaced: a name that was replaced here does not come
// back in the moment in which its successor has expired and was not swept.
func TestCatalogueHidesWhatWasReplaced(t *testing.T) {
	c := newCampaign(t)
	other := c.session(1, 8<<20)
	other.put(ns("k"), data(1, 1000))
	other.put(ns("child"), data(2, 1000))
	c.end(other)
	r := c.session(0, 8<<20)
	c.takeIn(r)
	e := ns("k")
	e.Expires = c.now().Add(time.Minute)
	r.put(e, data(3, 1000))
	half := ns("child")
	half.Parent, half.Bound = "nowhere", true
	r.put(half, data(4, 1000))
	c.later(2 * time.Minute)
	for range 2 {
		for _, k := range []string{"k", "child"} {
			r.want(k, nil)
			if r.Contains(t.Context(), "ns", k) || r.Probe(t.Context(), "ns", []string{k}).Hits != 0 {
				t.Errorf("%s has come back", k)
			}
		}
		r.Sweep()
	}
}

// TestCatalogueAfterEviction: a name that was replaced here does not come back
// when its successor is given up for want of room.
func TestCatalogueAfterEviction(t *testing.T) {
	c := newCampaign(t)
	other := c.session(1, 8<<20)
	other.put(ns("k"), data(1, 30_000))
	c.end(other)
	r := c.session(0, 4<<20, func(o *Options) { o.Limits.ColdBytes = 4 << 20 })
	c.takeIn(r)
	r.put(ns("k"), data(2, 30_000))
	gone := func() bool {
		r.Store.state.Mu.Lock()
		defer r.Store.state.Mu.Unlock()
		return r.state.Mu.Names.Get("ns", "k") == nil
	}
	for i := 0; !gone(); i++ {
		if i == 2000 {
			t.Fatal("it is never given up")
		}
		c.later(time.Second)
		r.put(ns(fmt.Sprint("other", i)), data(uint64(i), 30_000))
	}
	check := func(r *rig) {
		t.Helper()
		v, err := r.Get(t.Context(), "ns", "k")
		if err != nil {
			return
		}
		if string(v.Bytes()) != string(data(2, 30_000)) { // a segment with it may still be there
			t.Error("what was replaced has come back")
		}
		v.Release()
	}
	check(r)
	c.later(time.Minute)
	r.Sweep()
	check(r)
	c.end(r)
	for range 2 {
		r = c.session(0, 4<<20)
		c.takeIn(r)
		check(r)
		c.end(r)
		if err := os.RemoveAll(c.local); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCatalogueBound: half a pair is never served from the catalogue either.
func TestCatalogueBound(t *testing.T) {
	c := newCampaign(t)
	other := c.session(1, 8<<20)
	for _, k := range []string{"a", "b"} {
		other.put(ns(k), data(1, 1000))
		half := ns(k + ".values")
		half.Parent, half.Bound = k, true
		other.put(half, data(2, 1000))
	}
	c.end(other)
	r := c.session(0, 8<<20)
	c.takeIn(r)
	r.want("b.values", data(2, 1000))
	r.Delete(t.Context(), "ns", "a")
	r.want("a.values", nil)
	r.want("b", data(1, 1000))
	r.want("b.values", data(2, 1000))
}

// TestCatalogueLoses: a segment that goes away is a miss, and a damaged one too;
// a catalogue that breaks is a miss until the next round.
func TestCatalogueLoses(t *testing.T) {
	c := newCampaign(t)
	for rank := uint32(1); rank <= 3; rank++ {
		r := c.session(rank, 8<<20)
		r.put(ns(fmt.Sprint(rank)), data(uint64(rank), 30_000))
		c.end(r)
	}
	r := c.session(0, 8<<20)
	c.takeIn(r)
	one := func(rank int) string {
		files, _ := filepath.Glob(filepath.Join(c.dir, fmt.Sprintf("rank%03d-*", rank), "*.bin"))
		if len(files) != 1 {
			t.Fatalf("rank %d has %v", rank, files)
		}
		return files[0]
	}
	if err := os.Remove(one(1)); err != nil {
		t.Fatal(err)
	}
	p, err := os.ReadFile(one(2))
	if err != nil {
		t.Fatal(err)
	}
	for i := 9000; i < 9100; i++ {
		p[i] ^= 0x55
	}
	if err := os.WriteFile(one(2), p, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.want("1", nil)
		r.want("2", nil)
	}
	if n := r.Stats().Corrupt; n != 1 {
		t.Errorf("%d corrupt blocks counted", n)
	}
	r.want("3", data(3, 30_000))
	if err := os.RemoveAll(c.local); err != nil {
		t.Fatal(err)
	}
	fourth := c.session(4, 8<<20)
	fourth.put(ns("4"), data(4, 30_000))
	c.end(fourth)
	all, _ := r.others.Parts(t.Context())
	if _, err := r.AdoptParts(t.Context(), all); err == nil || catalogueErr(r) == nil {
		t.Fatalf("a round without a disk: %v", err)
	}
	r.want("4", nil)
	r.want("3", data(3, 30_000)) // in memory
	r.put(ns("5"), data(5, 30_000))
	if err := os.MkdirAll(c.local, 0o700); err != nil {
		t.Fatal(err)
	}
	c.takeIn(r)
	if catalogueErr(r) != nil {
		t.Error(catalogueErr(r))
	}
	r.want("4", data(4, 30_000))
	c.end(r)
}

// TestCatalogueModel: sessions of several ranks, rank 0 with a catalogue, put,
// delete and clear at random, are ended and begun again, with and without what
// the catalogue had. A get yields the newest version or nothing.
func TestCatalogueModel(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 7))
			c := newCampaign(t)
			const keys = 12
			newest := map[string]int{} // 0: deleted
			version, hits := 0, 0
			content := func(key string, version int) []byte {
				return []byte(fmt.Sprintf("%0*d of %s", 4000+version%7, version, key))
			}
			for range 14 {
				rank := uint32(rng.IntN(3))
				r := c.session(rank, 4<<20, func(o *Options) { o.Limits.ColdBytes = 0 })
				if rank == 0 {
					c.takeIn(r)
				}
				for range 40 {
					c.later(time.Second)
					key := fmt.Sprint(rng.IntN(keys))
					switch op := rng.IntN(20); {
					case op < 6:
						version++
						newest[key] = version
						r.put(ns(key), content(key, version))
					case rank != 0: // others only put: they do not know what they would delete
					case op < 9:
						newest[key] = 0
						r.Delete(t.Context(), "ns", key)
					case op == 9 && rng.IntN(6) == 0:
						clear(newest)
						r.Clear(t.Context(), "ns", rng.IntN(2) == 0)
					case op == 10:
						c.takeIn(r)
						r.Sweep()
					default:
						v, err := r.Get(t.Context(), "ns", key)
						if err != nil {
							continue
						}
						hits++
						if newest[key] == 0 || string(v.Bytes()) != string(content(key, newest[key])) {
							t.Errorf("%s: not version %d", key, newest[key])
						}
						v.Release()
					}
				}
				c.end(r)
				if rng.IntN(4) == 0 {
					if err := os.RemoveAll(c.local); err != nil {
						t.Fatal(err)
					}
				}
			}
			if hits == 0 {
				t.Error("no hits")
			}
		})
	}
}

func catalogueErr(r *rig) error {
	_, err := r.Catalogue()
	return err
}
