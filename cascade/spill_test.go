package cascade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cascadekv/cascade/coldspace"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

// small is a session with room for a MiB in memory.
func (c *campaign) small(change ...func(*Options)) *rig {
	return c.session(0, 4<<20, append(change, func(o *Options) { o.Capacity = 1 << 20 })...)
}

// spill drains a rank and spills what may be spilled, and returns how many files are.
func (c *campaign) spill(r *rig) int {
	c.t.Helper()
	if _, err := r.Drain(context.Background()); err != nil {
		c.t.Fatal(err)
	}
	r.space.SpillAll(context.Background())
	return len(r.state.Cold.Files.Spilled())
}

// onlySpilled reports whether a name is in the catalogue and not in the state.
func (r *rig) onlySpilled(key string) bool {
	r.state.Mu.Lock()
	n := r.state.Mu.Names.Get("ns", key)
	here := n != nil && n.Block() != nil
	r.state.Mu.Unlock()
	return !here && r.others.Catalogued("ns", []string{key})[0] != nil
}

// scanAll returns all keys of a scan, sorted, each once.
func (r *rig) scanAll() (keys []string) {
	for cursor := uint64(0); ; {
		cursor = r.Scan("ns", cursor, 10, func(k string) bool {
			keys = append(keys, k)
			return true
		})
		if cursor == 0 {
			break
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// wantCounted awaits that so many names of blocks of spillBlock bytes are counted, each once,
// wherever they are. A count stays for a while.
func wantCounted(t *testing.T, r *rig, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " names are counted"), func() bool {
		var of NamespaceStats
		for _, one := range CountedStats(r.Store).Namespaces {
			if one.Name == "ns" {
				of = one
			}
		}
		return r.Len("ns") == n && of.Names+of.Spilled == n && of.BytesReferenced+of.SpilledBytes == int64(n*spillBlock) && !of.Estimate
	})
}

const spillBlock = 30_000

// spilledChain is a rank with a chain of n blocks below, of which the first ones are
// spilled.
func spilledChain(t *testing.T, n int) (*campaign, *rig) {
	t.Helper()
	c := newCampaign(t)
	r := c.small()
	r.chain("k", 0, n, 1000)
	if got := c.spill(r); got == 0 {
		t.Fatal("no file is spilled")
	}
	if !r.onlySpilled("k0") {
		t.Fatal("the first block is not spilled")
	}
	return c, r
}

// TestSpilledIsAsBefore: what only the catalogue has is found, read, described, listed,
// changed and withdrawn as what is in memory, and nothing of it is lost by a restart,
// which reads no footer of it.
func TestSpilledIsAsBefore(t *testing.T) {
	const n = 200
	c, r := spilledChain(t, n)
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprint("k", i))
	}
	before := r.Stats()
	if before.Names > n/2 || before.Blocks > n/2 {
		t.Errorf("%d names of %d blocks are still in memory", before.Names, before.Blocks)
	}
	look := func(r *rig, when string) {
		t.Helper()
		if p := r.Probe(t.Context(), "ns", append(slices.Clone(keys), "nothing")); p.Hits != n || p.Bytes != n*spillBlock {
			t.Errorf("%s a probe hits %d of %d, %d bytes", when, p.Hits, n, p.Bytes)
		}
		if found := r.ContainsBatch(t.Context(), "ns", [][]byte{[]byte("k0"), []byte("nothing"), []byte("k150")}); !slices.Equal(found, []bool{true, false, true}) {
			t.Errorf("%s %v are there", when, found)
		}
		if info, ok := r.Stat(t.Context(), "ns", "k1"); !ok || info.Parent != "k0" || info.Depth != 1 || info.Size != spillBlock {
			t.Errorf("%s k1 is %+v", when, info)
		}
		want := slices.Clone(keys)
		slices.Sort(want)
		if got := r.scanAll(); !slices.Equal(got, want) {
			t.Errorf("%s a scan has %d of %d keys", when, len(got), n)
		}
		wantCounted(t, r, n)
		for i, k := range keys {
			r.want(k, data(uint64(1000+i), spillBlock))
		}
	}
	look(r, "at first")
	look(r, "once read")
	if st := r.Stats(); st.DirtyBlocks != 0 {
		t.Errorf("%d blocks that were read are dirty", st.DirtyBlocks)
	}
	c.end(r)
	r = c.small()
	if got := r.Stats(); got.Names > n/2 {
		t.Errorf("a restart takes %d names into memory", got.Names)
	}
	look(r, "after a restart")

	if !r.Delete(t.Context(), "ns", "k3") || r.Delete(t.Context(), "ns", "k3") || r.Contains(t.Context(), "ns", "k3") {
		t.Error("a name is not deleted once")
	}
	r.put(ns("k4"), data(77, spillBlock))
	r.want("k4", data(77, spillBlock))
	if err := r.stage(Entry{Namespace: "ns", Key: "k5", When: IfAbsent}, data(78, spillBlock)); !errors.Is(err, ErrCondition) {
		t.Errorf("a put of what is spilled, if absent: %v", err)
	}
	if !r.Expire(t.Context(), "ns", "k6", c.now().Add(time.Minute)) {
		t.Error("what is spilled gets no end")
	}
	c.later(2 * time.Minute)
	r.Sweep()
	gone := []string{"k3", "k6"}
	changed := map[string]uint64{"k4": 77}
	lookAgain := func(when string) {
		t.Helper()
		for i, k := range keys {
			seed := uint64(1000 + i)
			if s, ok := changed[k]; ok {
				seed = s
			}
			if slices.Contains(gone, k) {
				if r.Contains(t.Context(), "ns", k) {
					t.Errorf("%s %s is back", when, k)
				}
				continue
			}
			r.want(k, data(seed, spillBlock))
		}
		if got := r.scanAll(); len(got) != n-len(gone) {
			t.Errorf("%s a scan has %d keys", when, len(got))
		}
		wantCounted(t, r, n-len(gone))
	}
	lookAgain("after changes")
	c.spill(r)
	lookAgain("once these are spilled")
	c.end(r)
	r = c.small()
	lookAgain("after another restart")
	if got := r.Clear(t.Context(), "ns", false); got < n-len(gone) {
		t.Errorf("%d names are cleared", got)
	}
	if got := r.scanAll(); len(got) != 0 || r.Contains(t.Context(), "ns", "k7") {
		t.Errorf("%d names are there after a clear", len(got))
	}
	c.end(r)
}

// TestSpilledContentIsStoredOnce: bytes that lie in a spilled file are not written
// again, whichever way they are put, and the new names live as long as the old.
func TestSpilledContentIsStoredOnce(t *testing.T) {
	c, r := spilledChain(t, 200)
	used := r.state.Cold.Files.Usage().Used
	for i := range 20 {
		p := data(uint64(1000+i), spillBlock)
		if i%2 == 0 {
			r.put(ns(fmt.Sprint("again", i)), p)
		} else if err := r.stage(ns(fmt.Sprint("again", i)), p); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.write.FinalizePending(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.spill(r)
	if now := r.state.Cold.Files.Usage().Used; now-used > 10*spillBlock {
		t.Errorf("the tier takes %d bytes more", now-used)
	}
	r.chain("other", 0, 60, 5000) // pushes them out
	c.spill(r)
	for i := range 20 {
		r.want(fmt.Sprint("again", i), data(uint64(1000+i), spillBlock))
		if i%4 == 0 {
			r.Delete(t.Context(), "ns", fmt.Sprint("k", i))
		}
	}
	c.spill(r)
	for range 3 { // files are loaded again and merged whatever of them is stale
		for _, f := range r.state.Cold.Files.Spilled() {
			r.space.Reload(t.Context(), f, coldspace.Leave)
		}
		r.space.MergeAll(t.Context())
	}
	c.end(r)
	r = c.small()
	for i := range 20 {
		r.want(fmt.Sprint("again", i), data(uint64(1000+i), spillBlock))
		if is := r.Contains(t.Context(), "ns", fmt.Sprint("k", i)); is != (i%4 != 0) {
			t.Errorf("k%d is there: %v", i, is)
		}
	}
	c.end(r)
}

// TestStaleFilesAreMerged: space of what was overwritten or deleted comes back from
// spilled files too.
func TestStaleFilesAreMerged(t *testing.T) {
	c, r := spilledChain(t, 200)
	used := r.state.Cold.Files.Usage().Used
	for i := range 150 {
		r.Delete(t.Context(), "ns", fmt.Sprint("k", i))
	}
	if err := r.others.FlushTombstones(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.takeIn(r) // before that names elsewhere may stand for what is deleted
	c.spill(r)
	r.space.MergeAll(t.Context())
	eventually(t, "files of deleted blocks go", func() bool { return r.state.Cold.Files.Usage().Used < used/2 })
	for i := range 200 {
		if i < 150 == r.Contains(t.Context(), "ns", fmt.Sprint("k", i)) {
			t.Errorf("k%d is there: %v", i, i >= 150)
		}
	}
	c.end(r)
}

// TestSpilledIsCounted: what the index alone knows of is counted, from the start of a rank on.
func TestSpilledIsCounted(t *testing.T) {
	c := newCampaign(t)
	r := c.small()
	r.chain("a", 0, 30, 1)
	r.put(ns("again"), data(1, 30_000))
	c.spill(r)
	r.Delete(t.Context(), "ns", "a29")
	c.spill(r)
	c.end(r)
	r = c.small()
	st := r.Stats()
	if got := st.Spilled; got.Files == 0 || got.Bytes < 30*30_000 || got.Blocks+st.Blocks < 29 || got.Blocks > 30 || got.Names < 29 || got.Names > 31 {
		t.Errorf("%d blocks in memory, spilled: %+v", st.Blocks, got)
	}
	r.space.LookSpilled()
	if again := r.Stats().Spilled; again != st.Spilled {
		t.Errorf("at the start %+v, then %+v", st.Spilled, again)
	}
	c.end(r)
}

// TestSpillAgainstAModel: whatever happens in whatever order, the store has what a map
// would have.
func TestSpillAgainstAModel(t *testing.T) {
	steps := 400
	if testing.Short() {
		steps = 150
	}
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { spillAgainstAModel(t, seed, steps) })
	}
}

func spillAgainstAModel(t *testing.T, seed uint64, steps int) {
	rng := rand.New(rand.NewPCG(seed, 28))
	c := newCampaign(t)
	r := c.small()
	model := map[string]uint64{}
	var log []string
	key := func() string { return fmt.Sprint("k", rng.IntN(150)) }
	check := func(k string) {
		t.Helper()
		want, ok := model[k]
		if !ok {
			if r.Contains(t.Context(), "ns", k) {
				t.Fatalf("%s is there\n%s", k, strings.Join(log, " "))
			}
			return
		}
		v, err := r.Get(t.Context(), "ns", k)
		if err != nil {
			t.Fatalf("%s: %v\n%s", k, err, strings.Join(log, " "))
		}
		if block.Sum(block.Bits128, v.Bytes()) != block.Sum(block.Bits128, data(want, 8000)) {
			t.Fatalf("%s has other bytes\n%s", k, strings.Join(log, " "))
		}
		v.Release()
	}
	for step := range steps {
		var what string
		switch op := rng.IntN(100); {
		case op < 45:
			k, content := key(), rng.Uint64N(200)
			what = fmt.Sprint("put ", k, "=", content)
			e := Entry{Namespace: "ns", Key: k}
			if parent := key(); parent != k {
				e.Parent = parent
			}
			var err error
			if rng.IntN(2) == 0 {
				_, err = r.Put(t.Context(), e, data(content, 8000), nil)
			} else {
				err = r.stage(e, data(content, 8000))
			}
			if err != nil {
				t.Fatal(err)
			}
			model[k] = content
		case op < 55:
			k := key()
			what = "delete " + k
			_, had := model[k]
			if was := r.Delete(t.Context(), "ns", k); was != had {
				t.Fatalf("step %d: delete of %s: %v\n%s", step, k, was, strings.Join(log, " "))
			}
			delete(model, k)
		case op < 75:
			k := key()
			what = "get " + k
			check(k)
		case op < 85:
			what = fmt.Sprint("spill ", c.spill(r))
		case op < 90:
			what = "reload"
			if files := r.state.Cold.Files.Spilled(); len(files) > 0 {
				r.space.Reload(t.Context(), files[rng.IntN(len(files))], coldspace.Fate(rng.IntN(2)))
			}
		case op < 97:
			what = "merge"
			r.space.MergeAll(t.Context())
		case op < 98:
			what = "clear"
			r.Clear(t.Context(), "ns", false)
			clear(model)
		default:
			what = "restart"
			c.end(r)
			r = c.small()
		}
		log = append(log, what+";")
	}
	for i := range 150 {
		check(fmt.Sprint("k", i))
	}
	if got := r.scanAll(); len(got) != len(model) {
		t.Errorf("a scan has %d of %d keys", len(got), len(model))
	}
	c.end(r)
}

// TestSpillUnderLoad: files are spilled, loaded again and merged under requests, of which
// each sees what was put last or, while it looks, nothing else.
func TestSpillUnderLoad(t *testing.T) {
	c := newCampaign(t)
	r := c.small()
	const workers, keys, size = 4, 60, 8000
	turns := 3000
	if testing.Short() {
		turns = 500
	}
	var work, upkeep sync.WaitGroup
	stop := make(chan struct{})
	upkeep.Go(func() {
		rng := rand.New(rand.NewPCG(9, 9))
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := r.Drain(context.Background()); err != nil {
				t.Error(err)
				return
			}
			r.space.SpillAll(context.Background())
			if files := r.state.Cold.Files.Spilled(); len(files) > 0 && rng.IntN(2) == 0 {
				r.space.Reload(context.Background(), files[rng.IntN(len(files))], coldspace.Fate(rng.IntN(2)))
			}
			r.space.MergeAll(context.Background())
		}
	})
	for w := range workers {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 28))
			has := map[string]uint64{}
			for range turns {
				k := fmt.Sprint("w", w, ".", rng.IntN(keys))
				content, ok := has[k]
				switch rng.IntN(6) {
				case 0, 1, 2:
					has[k] = rng.Uint64N(300) // some are the same as others'
					if _, err := r.Put(context.Background(), ns(k), data(has[k], size), nil); err != nil {
						t.Error(err)
						return
					}
				case 3:
					if was := r.Delete(context.Background(), "ns", k); was != ok {
						t.Errorf("delete of %s: %v", k, was)
					}
					delete(has, k)
				default:
					v, err := r.Get(context.Background(), "ns", k)
					switch {
					case err == nil && !ok:
						t.Errorf("%s is there", k)
					case err != nil && ok:
						t.Errorf("%s: %v, %+v", k, err, r.Stats().Losses)
					case err == nil && !bytes.Equal(v.Bytes(), data(content, size)):
						t.Errorf("%s has other bytes", k)
					}
					if err == nil {
						v.Release()
					}
				}
			}
		})
	}
	work.Wait()
	close(stop)
	upkeep.Wait()
	c.end(r)
}

// TestScanOfReplaced: what the catalogue has of a name that was put anew, and whose new
// life is over, is listed by no scan though the catalogue does not know that yet.
func TestScanOfReplaced(t *testing.T) {
	_, r := spilledChain(t, 200)
	r.put(Entry{Namespace: "ns", Key: "k0", Expires: time.Now().Add(-time.Second)}, data(5000, spillBlock))
	if keys := r.scanAll(); slices.Contains(keys, "k0") || !slices.Contains(keys, "k1") {
		t.Errorf("a scan has %d keys, k0 among them: %v", len(keys), slices.Contains(keys, "k0"))
	}
}

// TestNamesOfASpillingRank: once a rank has spilled a file, it still states to homes what is
// in its memory and in files, as well as what only the catalogue has.
func TestNamesOfASpillingRank(t *testing.T) {
	const n = 200
	_, r := spilledChain(t, n)
	stated := map[string]bool{}
	Local{r.Store}.Names(func(ns, _ string) bool { return ns == "ns" }, func(st directory.Statement) { stated[st.Name.Key] = true })
	for i := range n {
		if key := fmt.Sprint("k", i); !stated[key] {
			t.Errorf("%s is not stated; only in the catalogue: %v", key, r.onlySpilled(key))
		}
	}
}

// TestNamesInFilesThatAreGone: a name lies in another file than its block, and that file
// goes without the index hearing of it, as after a merge just before a kill: the name is
// gone too, whether the file was the last one of its run or not.
func TestNamesInFilesThatAreGone(t *testing.T) {
	for name, run := range map[string]struct {
		again bool
		block uint64 // whose other name it is, in a file that is spilled, or one that is read
	}{
		"of the same run":           {false, 0},
		"a run of its own":          {true, 0},
		"a run of its own, is read": {true, 199},
	} {
		t.Run(name, func(t *testing.T) {
			c, r := spilledChain(t, 200)
			if run.again {
				c.end(r)
				r = c.small()
			}
			p := data(1000+run.block, spillBlock)
			r.put(ns("alias"), p)
			c.end(r)
			files, err := filepath.Glob(filepath.Join(c.dir, "rank*", "*.bin"))
			if err != nil || len(files) < 2 {
				t.Fatal(files, err)
			}
			if err := os.Remove(files[len(files)-1]); err != nil {
				t.Fatal(err)
			}
			r = c.small()
			r.want("k0", data(1000, spillBlock))
			if r.Contains(t.Context(), "ns", "alias") {
				t.Error("a name is there of which no file has a record")
			}
		})
	}
}
