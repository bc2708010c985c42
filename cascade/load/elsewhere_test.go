package load

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/testing/parttest"
)

// waiting waits until so many requests wait for a name.
func (r *rank) waiting(key string, n int) {
	r.t.Helper()
	parttest.Eventually(r.t, "requests wait", func() bool {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		got, _ := r.WaitingLocked(residency.NameID{NS: "ns", Key: key})
		return got == n
	})
}

// However many ask for a block of another rank, it is read once. It is not kept, and
// its owner learns that it was used.
func TestABlockOfAnotherRankIsReadOnce(t *testing.T) {
	r := newRank(t)
	p := parttest.Data(1, size)
	r.peers.Hold(named("a", 5), p, true, nil)
	goOn := r.peers.Stop()
	got := make(chan *residency.View)
	for range 10 {
		go func() { got <- r.get(t.Context(), false, "a")[0] }()
	}
	r.waiting("a", 10)
	goOn()
	for range 10 {
		r.wants(<-got, p, residency.RemoteTier)
	}
	if n := r.peers.Reads(); n != 1 {
		t.Errorf("read %d times", n)
	}
	parttest.Eventually(t, "the owner learns of all", func() bool { return len(r.peers.Touched()) == 10 })
	r.idle()
	if n, taken := r.buffers(); r.Block("a") != nil || n != 0 || taken != 1 {
		t.Errorf("it is kept: %v; %d of %d buffers are in use", r.Block("a") != nil, n, taken)
	}
}

// What one rank has of a request is read together, in parts of a bounded number of
// blocks and bytes.
func TestBlocksOfARankAreReadTogether(t *testing.T) {
	for name, c := range map[string]struct {
		blocks, size int
		want         []int
	}{
		"small": {2*partReads + 5, 100, []int{5, partReads, partReads}},
		"large": {5, partBytes / 2, []int{1, 2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t)
			var keys []string
			for i := range c.blocks {
				keys = append(keys, fmt.Sprint(i))
				r.peers.Hold(named(keys[i], 5), parttest.Data(uint64(i), c.size), true, nil)
			}
			for i, v := range r.get(t.Context(), false, keys...) {
				r.wants(v, parttest.Data(uint64(i), c.size), residency.RemoteTier)
			}
			got := r.peers.Batches()
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("read %v together, want %v", got, c.want)
			}
			r.idle()
		})
	}
}

// A request that ends while it reads for others too leaves the blocks to them.
func TestTheReaderGivesUp(t *testing.T) {
	r := newRank(t)
	p := parttest.Data(1, size)
	r.peers.Hold(named("a", 5), p, true, nil)
	goOn := r.peers.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan *residency.View), make(chan *residency.View)
	go func() { first <- r.get(ctx, false, "a")[0] }()
	r.waiting("a", 1)
	go func() { second <- r.get(t.Context(), false, "a")[0] }()
	r.waiting("a", 2)
	cancel()
	r.wants(<-first, nil, "")
	goOn()
	r.wants(<-second, p, residency.RemoteTier)
	r.idle()
}

// What a rank does not have any more comes from a segment, the rest of the request from
// the rank.
func TestPartOfARequestIsInSegments(t *testing.T) {
	r := newRank(t)
	var keys []string
	r.files.segments = map[string][]byte{}
	for i := range 9 {
		keys = append(keys, fmt.Sprint(i))
		p := parttest.Data(uint64(i), size)
		st := r.peers.Hold(named(keys[i], 5), p, true, &directory.Segment{Path: keys[i]})
		r.files.segments[keys[i]] = p
		if i%3 == 1 {
			r.peers.Damage(st.Info.ID)
		}
	}
	for i, v := range r.get(t.Context(), false, keys...) {
		tier := residency.RemoteTier
		if i%3 == 1 {
			tier = r.ColdName()
		}
		r.wants(v, parttest.Data(uint64(i), size), tier)
	}
	if r.Count.Stats.Corrupt != 3 {
		t.Errorf("%d were corrupt", r.Count.Stats.Corrupt)
	}
	r.idle()
}

// Nobody's block is a miss; in a request with others it is only that.
func TestWhatNobodyHas(t *testing.T) {
	r := newRank(t)
	r.peers.Hold(named("a", 5), parttest.Data(1, size), true, nil)
	views := r.get(t.Context(), false, "nowhere", "a")
	r.wants(views[0], nil, "")
	r.wants(views[1], parttest.Data(1, size), residency.RemoteTier)
	if got := r.peers.Touched(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("used: %v", got)
	}
	r.idle()
}

// A copy that is to stay is a name of this rank's own, as old as what it is a copy of.
func TestACopyStays(t *testing.T) {
	r := newRank(t)
	p := parttest.Data(1, size)
	r.peers.Hold(named("a", 5), p, true, nil)
	r.wants(r.get(t.Context(), true, "a")[0], p, residency.RemoteTier)
	b := r.Block("a")
	if b == nil || !b.In(0) || !b.CountedDirty || r.Count.Stats.Replicas != 1 || b.Names()[0].Put() != 5 {
		t.Errorf("%+v, %d replicas", b, r.Count.Stats.Replicas)
	}
	r.idle()
}

// A block that is asked for again and again is kept, though nobody said so.
func TestHotBlocksAreKept(t *testing.T) {
	r := newRank(t)
	p := parttest.Data(1, size)
	r.peers.Hold(named("a", 5), p, true, nil)
	n := 0
	for ; r.Block("a") == nil && n < 100; n++ {
		r.wants(r.get(t.Context(), false, "a")[0], p, residency.RemoteTier)
	}
	if n < 2 || n == 100 {
		t.Errorf("it is kept after %d reads", n)
	}
	r.idle()
}

// cleared has all fetches of a namespace forgotten.
func (r *rank) cleared(ns string) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.InvalidateFetchesLocked(ns, false, math.MaxUint64)
}

// Where a name came here meanwhile, or changed, what was read is served and not kept.
func TestANameThatChangesMeanwhile(t *testing.T) {
	for name, change := range map[string]func(r *rank){
		"put":     func(r *rank) { r.Put(parttest.Name("a"), parttest.Data(2, size)) },
		"expired": func(r *rank) { r.cleared("ns") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t)
			p := parttest.Data(1, size)
			r.peers.Hold(named("a", 5), p, true, nil)
			goOn := r.peers.Stop()
			got := make(chan *residency.View)
			go func() { got <- r.get(t.Context(), true, "a")[0] }()
			r.waiting("a", 1)
			change(r)
			goOn()
			r.wants(<-got, p, residency.RemoteTier)
			if b := r.Block("a"); (b == nil) == (name == "put") || b != nil && b.Info.ID == r.peers.Hold(named("a", 5), p, true, nil).Info.ID {
				t.Errorf("%+v is kept", b)
			}
			r.idle()
		})
	}
}

// Without room for its name a block is served and not kept.
func TestNoRoomForTheName(t *testing.T) {
	r := newRank(t, func(o *residency.Options) { o.Limits.NameBytes = names.Cost("x", "") })
	for _, k := range []string{"x", "y"} {
		r.Put(parttest.Name(k), parttest.Data(2, size))
	}
	v := r.Pin("x")
	p := parttest.Data(1, size)
	r.peers.Hold(named("a", 5), p, true, nil)
	r.wants(r.get(t.Context(), true, "a")[0], p, residency.RemoteTier)
	v.Release()
	if r.Block("a") != nil {
		t.Error("it is kept")
	}
	r.idle()
}

// Bytes of another rank that fail their checksum are no hit: a segment is, where there
// is one.
func TestMisreads(t *testing.T) {
	for _, below := range []bool{false, true} {
		r := newRank(t)
		p := parttest.Data(1, size)
		var at *directory.Segment
		if below {
			at = &directory.Segment{Path: "seg"}
			r.files.segments["seg"] = p
		}
		st := r.peers.Hold(named("a", 5), p, true, at)
		r.peers.Damage(st.Info.ID)
		v := r.get(t.Context(), true, "a")[0]
		if below {
			r.wants(v, p, "host")
		} else {
			r.wants(v, nil, "")
		}
		if r.Count.Stats.Corrupt != 1 || !r.Log.Has("fails its checksum") || (r.Block("a") != nil) != below {
			t.Errorf("%d corrupt; it is kept: %v", r.Count.Stats.Corrupt, r.Block("a") != nil)
		}
		r.idle()
	}
}

// What only segments have is read together, and kept; what came from the catalogue is
// clean.
func TestSegmentsAreReadTogether(t *testing.T) {
	r := newRank(t)
	var keys []string
	for i := range 10 {
		keys = append(keys, fmt.Sprint(i))
		p := parttest.Data(uint64(i), size)
		r.files.segments[keys[i]] = p
		if i < 5 {
			r.known.Hold(named(keys[i], 5), p)
		} else {
			r.peers.Hold(named(keys[i], 5), p, false, &directory.Segment{Path: keys[i]})
		}
	}
	for i, v := range r.get(t.Context(), false, keys...) {
		r.wants(v, parttest.Data(uint64(i), size), "host")
	}
	if got := r.files.reads(); !slices.Equal(got, []int{10}) {
		t.Errorf("read %v", got)
	}
	for i, k := range keys {
		if b := r.Block(k); b == nil || !b.In(0) || (b.From != nil) != (i < 5) || b.CountedDirty != (i >= 5) {
			t.Errorf("block %s: %+v", k, b)
		}
	}
	if r.peers.Touched() != nil || r.Count.Stats.Replicas != 5 {
		t.Errorf("used %v, %d replicas", r.peers.Touched(), r.Count.Stats.Replicas)
	}
	r.idle()
}

// A segment that is not there, or damaged, is a miss, and taken back where it was stated.
func TestLostSegments(t *testing.T) {
	r := newRank(t)
	p := parttest.Data(1, size)
	r.files.segments["damaged"] = parttest.Data(9, size)
	gone := r.known.Hold(named("gone", 5), p)
	r.known.Hold(named("damaged", 5), parttest.Data(2, size))
	r.peers.Hold(named("stated", 5), parttest.Data(3, size), false, &directory.Segment{Path: "nowhere"})
	for _, v := range r.get(t.Context(), false, "gone", "damaged", "stated") {
		r.wants(v, nil, "")
	}
	r.idle()
	if got := r.known.Forgotten(); len(got) != 2 || !slices.Contains(got, gone) || r.Count.Stats.Corrupt != 1 {
		t.Errorf("forgotten %v, %d corrupt", got, r.Count.Stats.Corrupt)
	}
	if got := r.peers.Invalidated(); len(got) != 1 || got[0].Name.Key != "stated" || got[0].Segment != nil {
		t.Errorf("taken back: %+v", got)
	}
	if n, _ := r.buffers(); n != 0 || r.Last().Memory.Usage().Blocks != 0 {
		t.Errorf("%d buffers are in use, %d blocks in memory", n, r.Last().Memory.Usage().Blocks)
	}
}

// at is a segment.
func at(path string) *directory.Segment { return &directory.Segment{Path: path} }

// A block that was moved since the catalogue, or a home, learned where it is comes from where
// it is, and is no loss: the peers are asked within the same get, once more if they were
// asked before.
func TestMovedBlocks(t *testing.T) {
	p := parttest.Data(1, size)
	for name, c := range map[string]struct {
		first func(r *rank) // where the block is known to be
		moved func(r *rank) // and is
		tier  string
		asked int // how often the peers are
	}{
		"from the catalogue to memory":       {func(r *rank) { r.known.Hold(named("a", 5), p) }, func(r *rank) { r.peers.Hold(named("a", 5), p, true, nil) }, residency.RemoteTier, 1},
		"from the catalogue to another file": {func(r *rank) { r.known.Hold(named("a", 5), p) }, func(r *rank) { r.peers.Hold(named("a", 5), p, false, at("merged")) }, "host", 1},
		"within the catalogue":               {func(r *rank) { r.known.Hold(named("a", 5), p) }, func(r *rank) { r.known.HoldAt(named("a", 5), p, "merged") }, "host", 0},
		"from one file to another":           {func(r *rank) { r.peers.Hold(named("a", 5), p, false, at("given up")) }, func(r *rank) { r.peers.Hold(named("a", 5), p, false, at("merged")) }, "host", 2},
		"from a file to memory":              {func(r *rank) { r.peers.Hold(named("a", 5), p, false, at("given up")) }, func(r *rank) { r.peers.Hold(named("a", 5), p, true, nil) }, residency.RemoteTier, 2},
		"from memory and a file to another":  {func(r *rank) { r.peers.Gone(named("a", 5), p, at("given up")) }, func(r *rank) { r.peers.Hold(named("a", 5), p, false, at("merged")) }, "host", 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t)
			takes(r.Cold, 300*time.Microsecond, 0) // too fast for a question to pay
			r.files.segments["merged"] = p
			c.first(r)
			r.files.missing = func(string) { c.moved(r) }
			r.wants(r.get(t.Context(), false, "a")[0], p, c.tier)
			if got := r.Count.Losses.Counts(); len(got) != 0 {
				t.Errorf("lost: %v", got)
			}
			if got := r.peers.Located(); len(got) != c.asked {
				t.Errorf("asked for %q, want %d keys", got, c.asked)
			}
			r.idle()
		})
	}
}

// A spilled file is loaded again, and merged, while names in it are looked for, or read: they are here
// then, in files that this rank knows by itself. Nothing is lost.
func TestBlocksThatComeHere(t *testing.T) {
	p := parttest.Data(1, size)
	for name, located := range map[string]bool{"before the catalogue is asked": false, "before the file is read": true} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t)
			takes(r.Cold, 300*time.Microsecond, 0)
			come := sync.OnceFunc(func() { r.PutCold(named("a", 5), p) })
			if r.files.missing = func(string) { come() }; located {
				r.known.Hold(named("a", 5), p)
			} else {
				come()
			}
			r.wants(r.get(t.Context(), false, "a")[0], p, "host")
			if got := r.Count.Losses.Counts(); len(got) != 0 {
				t.Errorf("lost: %v", got)
			}
			r.idle()
		})
	}
}

// What is not where it is stated the second time either is lost, and is lost once: for each
// who waits.
func TestBlocksThatMoveOn(t *testing.T) {
	for name, more := range map[string]bool{"nowhere": false, "on and on": true} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t)
			takes(r.Cold, 300*time.Microsecond, 0)
			p := parttest.Data(1, size)
			r.known.Hold(named("a", 5), p)
			moves := 0
			r.files.missing = func(string) {
				if moves++; more {
					r.peers.Hold(named("a", 5), p, false, at(fmt.Sprint("moved", moves)))
				}
			}
			r.wants(r.get(t.Context(), false, "a")[0], nil, "")
			want := residency.LossCounts{residency.StepSegment: {"gone": 1}}
			if got := r.Count.Losses.Counts(); !maps.EqualFunc(got, want, maps.Equal) {
				t.Errorf("lost: %v, want %v", got, want)
			}
			if got := r.peers.Located(); len(got) != 1 {
				t.Errorf("asked for %q", got)
			}
			r.idle()
		})
	}
}

// What the homes still state is not tried once more.
func TestWhatIsStatedStillIsNotTriedTwice(t *testing.T) {
	r := newRank(t)
	r.peers.Hold(named("a", 5), parttest.Data(1, size), false, at("gone"))
	tries := 0
	r.files.missing = func(string) { tries++ }
	r.wants(r.get(t.Context(), false, "a")[0], nil, "")
	if got := r.peers.Located(); tries != 2 || len(got) != 2 { // together with others, and by itself
		t.Errorf("tried %d times, asked for %q", tries, got)
	}
	r.idle()
}

// Who does not wait any longer misses.
func TestADeadlineElsewhere(t *testing.T) {
	r := newRank(t)
	r.peers.Hold(named("a", 5), parttest.Data(1, size), true, nil)
	goOn := r.peers.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.wants(r.get(ctx, false, "a")[0], nil, "")
	goOn()
	r.idle()
	if n, _ := r.buffers(); n != 0 {
		t.Errorf("%d buffers are in use", n)
	}
}

// chain makes a chain of n blocks known that another rank has, each of size bytes.
func (r *rank) chain(n, size int) (a *Prefetch) {
	a = NewPrefetch("ns", n)
	for i := range n {
		key := fmt.Sprint(i)
		st := r.peers.Hold(named(key, 5), parttest.Data(uint64(i), size), true, nil)
		a.Add(key, others.Hit{Found: true, Size: st.Info.Size, Copies: []directory.Statement{st}})
	}
	return a
}

// landed waits until nothing is on its way, and returns what is here ahead of its get.
func (r *rank) landed() (blocks int, bytes int64) {
	r.t.Helper()
	r.Workers.Wait()
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.PrefetchedLocked()
}

// Some blocks of a chain are fetched ahead, together, and as many more once a step of
// them is asked for; a get of one reads nothing.
func TestPrefetchIsAheadOfTheGets(t *testing.T) {
	for name, c := range map[string]struct{ size, ahead, step int }{
		"small": {size, partReads, partReads / PrefetchBlocks},
		"large": {prefetchAhead / 3, PrefetchBlocks, 1},
		"other": {prefetchAhead / PrefetchBlocks / 3, 3 * PrefetchBlocks, 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t)
			r.Put(parttest.Name("0"), parttest.Data(100, size)) // is here
			r.StartPrefetch(r.chain(c.ahead+c.step+2, c.size))
			if n, bytes := r.landed(); n != c.ahead || bytes != int64(c.ahead*c.size) {
				t.Errorf("%d blocks, %d bytes are ahead", n, bytes)
			}
			r.peers.Located()
			if n, parts := r.peers.Reads(), r.peers.Batches(); n != c.ahead || c.ahead*c.size <= partBytes && len(parts) != 1 {
				t.Errorf("%d reads, in parts of %v", n, parts)
			}
			for i := range c.step {
				if n := r.peers.Reads(); n != 0 {
					t.Errorf("%d reads after %d gets", n, i)
				}
				r.wants(r.get(t.Context(), false, fmt.Sprint(1+i))[0], parttest.Data(uint64(1+i), c.size), residency.RemoteTier)
				r.landed()
			}
			if got := r.peers.Located(); got != nil {
				t.Errorf("asked for %v", got)
			}
			n, _ := r.landed()
			if parts := r.peers.Batches(); !slices.Equal(parts, []int{c.step}) || n != c.ahead+c.step {
				t.Errorf("reads in parts of %v, %d blocks are ahead", parts, n)
			}
			for range c.step {
				r.wants(r.get(t.Context(), false, "1")[0], parttest.Data(1, c.size), residency.RemoteTier)
			}
			if n, _ := r.landed(); n != c.ahead+c.step {
				t.Errorf("%d blocks are ahead: the same get again goes on with the chain again", n)
			}
			r.Mu.Lock()
			defer r.Mu.Unlock()
			for _, f := range r.guarded.fetches {
				if f.name.Key == "0" {
					t.Error("what is here is fetched")
				}
			}
		})
	}
}

// What is not asked for in time is given back, and so is what has changed or is wanted
// to stay.
func TestPrefetchIsGivenBack(t *testing.T) {
	sweep := func(r *rank, all bool) {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		r.SweepLandedLocked(r.Now(), all)
	}
	for name, x := range map[string]struct {
		do   func(r *rank)
		left int
	}{
		"too early":       {func(r *rank) { r.Advance(residency.PrefetchFor - 1); sweep(r, false) }, 4},
		"in time":         {func(r *rank) { r.Advance(residency.PrefetchFor); sweep(r, false) }, 0},
		"at the end":      {func(r *rank) { sweep(r, true) }, 0},
		"cleared":         {func(r *rank) { r.cleared("ns") }, 0},
		"another cleared": {func(r *rank) { r.cleared("other") }, 4},
		"put":             {func(r *rank) { r.Put(parttest.Name("2"), parttest.Data(200, size)) }, 3},
		"to stay": {func(r *rank) {
			r.wants(r.get(r.t.Context(), true, "2")[0], parttest.Data(2, size), residency.RemoteTier)
		}, 3},
		"too late a get": {func(r *rank) {
			r.Advance(residency.PrefetchFor + time.Second)
			r.wants(r.get(r.t.Context(), false, "2")[0], parttest.Data(2, size), residency.RemoteTier)
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t)
			r.StartPrefetch(r.chain(4, size))
			r.landed()
			x.do(r)
			n, bytes := r.landed()
			if inUse, _ := r.buffers(); n != x.left || bytes != int64(x.left)*size || inUse != x.left {
				t.Errorf("%d blocks, %d bytes are ahead, %d buffers are in use; want %d", n, bytes, inUse, x.left)
			}
			sweep(r, true)
			r.idle()
		})
	}
}

// All that is fetched ahead has a bound, and a closed store fetches nothing.
func TestPrefetchIsBounded(t *testing.T) {
	r := newRank(t)
	a := r.chain(4, size)
	r.Mu.Lock()
	r.guarded.prefetchBytes = maxPrefetchBytes - 2*size
	r.Mu.Unlock()
	r.StartPrefetch(a)
	if n, bytes := r.landed(); n != 2 || bytes != maxPrefetchBytes {
		t.Errorf("%d blocks, %d bytes are ahead", n, bytes)
	}
	r.Mu.Lock()
	r.guarded.prefetchBytes -= maxPrefetchBytes - 2*size
	r.SweepLandedLocked(r.Now(), true)
	r.Mu.Closed = true
	r.Mu.Unlock()
	r.peers.Reads()
	r.StartPrefetch(r.chain(4, size))
	if n, bytes := r.landed(); n != 0 || bytes != 0 || r.peers.Reads() != 0 {
		t.Errorf("%d blocks, %d bytes are ahead in a closed store", n, bytes)
	}
}
