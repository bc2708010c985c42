package cascade

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"cascadekv/cascade/load"
	"cascadekv/cascade/residency"
)

// wantMiss checks that a rank has no such key, in time.
func (r *jobRank) wantMiss(t *testing.T, key string) {
	t.Helper()
	start := time.Now()
	v, err := r.Get(t.Context(), "ns", key)
	if err == nil {
		v.Release()
	}
	if !errors.Is(err, ErrMiss) {
		t.Errorf("rank %d: get %q: %v, want a miss", r.node.Self(), key, err)
	}
	// Twice the deadline: the machine may be busy.
	if d := time.Since(start); d > 4*time.Second {
		t.Errorf("rank %d: a miss took %v", r.node.Self(), d)
	}
}

func TestConcurrentGetsAreOneRead(t *testing.T) {
	j := newJob(t, 2, 16<<20)
	p := data(1, 100_000)
	j.ranks[0].putKey(t, "k", p)
	j.settle()
	b := j.ranks[1]
	release := b.load.HoldReads() // until all have asked
	const n = 32
	var wait sync.WaitGroup
	for range n {
		wait.Go(func() { b.wantAt(t, "k", p) })
	}
	eventually(t, "all wait for one fetch", func() bool {
		b.state.Mu.Lock()
		defer b.state.Mu.Unlock()
		waiters, _ := b.load.WaitingLocked(residency.NameID{NS: "ns", Key: "k"})
		return waiters == n
	})
	release()
	wait.Wait()
	if reads := b.node.Stats().Reads; reads != 1 {
		t.Errorf("%d gets were %d reads", n, reads)
	}
}

func TestProbedBlocksComeAheadOfTheirGets(t *testing.T) {
	j := newJob(t, 2, 16<<20)
	const n, size = 20, 200_000
	var keys []string
	for i := range n {
		e := ns(fmt.Sprint(i))
		if i > 0 {
			e.Parent = keys[i-1]
		}
		keys = append(keys, e.Key)
		if _, err := j.ranks[0].Put(t.Context(), e, data(uint64(i), size), nil); err != nil {
			t.Fatal(err)
		}
	}
	j.settle()
	b := j.ranks[1]
	if p := b.Probe(t.Context(), "ns", keys); p.Hits != n || p.Tiers[RemoteTier] != n || p.Bytes != n*size {
		t.Fatalf("%+v", p)
	}
	landed := func() (n int, bytes int64) {
		b.state.Mu.Lock()
		defer b.state.Mu.Unlock()
		return b.load.PrefetchedLocked()
	}
	eventually(t, "the first blocks are here", func() bool { n, _ := landed(); return n == load.PrefetchBlocks })
	if reads := b.node.Stats().Reads; reads != load.PrefetchBlocks {
		t.Errorf("%d blocks were read ahead, want %d", reads, load.PrefetchBlocks)
	}
	// A get is served from here, and brings the next block.
	lookups := b.node.Stats().Lookups
	if tier := b.wantAt(t, "0", data(0, size)); tier != RemoteTier {
		t.Errorf("served from %q", tier)
	}
	eventually(t, "the next block is here", func() bool { return b.node.Stats().Reads == load.PrefetchBlocks+1 })
	if b.node.Stats().Lookups != lookups {
		t.Error("a get of what is here looked it up elsewhere")
	}
	for i, key := range keys {
		b.wantAt(t, key, data(uint64(i), size))
	}
	if reads := b.node.Stats().Reads; reads != n {
		t.Errorf("%d reads of %d blocks", reads, n)
	}
	// What is not asked for in time is given back.
	eventually(t, "all fetches have ended", func() bool { n, _ := landed(); return n > 0 })
	j.late.Add(int64(residency.PrefetchFor + time.Second))
	b.Sweep()
	if n, bytes := landed(); n != 0 || bytes != 0 {
		t.Errorf("%d blocks, %d bytes are still here", n, bytes)
	}
}

// TestContainsPrefetches: what others have of a chain up to its first missing key is on its way once it was
// looked for, as after a probe; and no more once that was in vain.
func TestContainsPrefetches(t *testing.T) {
	j := newJob(t, 2, 16<<20)
	a, b := j.ranks[0], j.ranks[1]
	const size = 200_000
	chain := func(c int, absent int) (keys []string, words [][]byte) {
		for i := range 6 {
			keys = append(keys, fmt.Sprint("c", c, "k", i))
			words = append(words, []byte(keys[i]))
			if i != absent {
				a.putKey(t, keys[i], data(uint64(10*c+i), size))
			}
		}
		j.settle()
		return keys, words
	}
	want := func(fetched, hits, wasted uint64) {
		t.Helper()
		if st := b.Stats(); st.Prefetched != fetched || st.PrefetchHits != hits || st.PrefetchWasted != wasted {
			t.Errorf("%d prefetched, %d of use, %d in vain; want %d, %d, %d", st.Prefetched, st.PrefetchHits, st.PrefetchWasted, fetched, hits, wasted)
		}
	}
	keys, words := chain(1, 4)
	b.ContainsBatch(t.Context(), "ns", words)
	for i, k := range keys[:4] {
		if tier := b.wantAt(t, k, data(uint64(10+i), size)); tier != RemoteTier {
			t.Errorf("served from %q", tier)
		}
	}
	want(4, 4, 0)
	if reads := b.node.Stats().Reads; reads != 4 {
		t.Errorf("%d reads of 4 blocks", reads)
	}
	late := func() {
		j.late.Add(int64(residency.PrefetchFor + time.Second))
		b.Sweep()
	}
	late()
	_, words = chain(2, -1)
	b.ContainsBatch(t.Context(), "ns", words)
	want(10, 4, 0)
	eventually(t, "all have come", func() bool {
		b.state.Mu.Lock()
		defer b.state.Mu.Unlock()
		n, _ := b.load.PrefetchedLocked()
		return n == 6
	})
	late()
	want(10, 4, 6)
	_, words = chain(3, -1)
	if found := b.ContainsBatch(t.Context(), "ns", words); !found[5] {
		t.Error("it is not found")
	}
	want(10, 4, 6)
}

// TestStoreSweeps: blocks that were prefetched and not asked for in time make room
// for others, and names end, though nobody calls Sweep.
func TestStoreSweeps(t *testing.T) {
	j := (&job{t: t, sweepEvery: time.Millisecond}).open(2, 16<<20)
	a, b := j.ranks[0], j.ranks[1]
	a.putKey(t, "k", data(1, 5000))
	mortal := ns("mortal")
	mortal.Expires = time.Now().Add(time.Hour)
	if _, err := b.Put(t.Context(), mortal, data(2, 5000), nil); err != nil {
		t.Fatal(err)
	}
	j.settle()
	b.Probe(t.Context(), "ns", []string{"k"})
	prefetched := func() int64 {
		b.state.Mu.Lock()
		defer b.state.Mu.Unlock()
		_, bytes := b.load.PrefetchedLocked()
		return bytes
	}
	eventually(t, "the probed block is here", func() bool { return b.node.Stats().Reads == 1 })
	j.late.Add(int64(2 * time.Hour))
	eventually(t, "its room is given back", func() bool { return prefetched() == 0 })
	eventually(t, "the name has ended", func() bool { return b.Stats().Names == 0 })
}

func TestHotBlocksReplicate(t *testing.T) {
	j := newJob(t, 3, 16<<20)
	hot, cold := data(1, 4000), data(2, 4000)
	j.ranks[0].putKey(t, "hot", hot)
	j.ranks[0].putKey(t, "cold", cold)
	j.settle()
	b := j.ranks[1]
	for i := range 5 {
		want := RemoteTier
		if i > 2 {
			want = "shm"
		}
		if tier := b.wantAt(t, "hot", hot); tier != want {
			t.Errorf("get %d is served from %q, want %q", i+1, tier, want)
		}
	}
	for range 2 {
		if tier := b.wantAt(t, "cold", cold); tier != RemoteTier {
			t.Errorf("the cold block is served from %q", tier)
		}
	}
	if n := b.Stats().Replicas; n != 1 {
		t.Errorf("%d replicas", n)
	}
	// The copy serves others when the original is gone.
	j.settle()
	j.die(0)
	j.ranks[2].wantAt(t, "hot", hot)
	j.ranks[2].wantMiss(t, "cold")
}

func TestOverwriteReachesAllRanks(t *testing.T) {
	j := newJob(t, 3, 16<<20)
	first, second := data(1, 4000), data(2, 4000)
	j.ranks[0].putKey(t, "k", first)
	j.settle()
	for range 4 {
		j.ranks[1].wantAt(t, "k", first)
	}
	j.settle()
	j.ranks[2].putKey(t, "k", second)
	j.settle()
	for i, r := range j.ranks[:2] {
		eventually(t, "the old copy is dropped", func() bool { return !r.state.ContainsHere("ns", "k") })
		if tier := r.wantAt(t, "k", second); tier != RemoteTier {
			t.Errorf("rank %d serves the new bytes from %q", i, tier)
		}
	}
}

func TestDeleteIsSeenEverywhere(t *testing.T) {
	j := newJob(t, 3, 16<<20)
	p := data(1, 4000)
	for i := range 30 {
		key := fmt.Sprint(i)
		j.ranks[i%3].putKey(t, key, p)
		j.settle()
		if i%2 == 0 { // a replica, and one fetched ahead where it is deleted
			for range 4 {
				j.ranks[(i+1)%3].wantAt(t, key, p)
			}
			j.ranks[(i+2)%3].Probe(t.Context(), "ns", []string{key})
			j.settle()
		}
		if !j.ranks[(i+2)%3].Delete(t.Context(), "ns", key) {
			t.Errorf("delete of %q: not there", key)
		}
		for _, r := range j.ranks {
			r.wantMiss(t, key)
		}
		j.settle()
		for _, r := range j.ranks {
			r.wantMiss(t, key)
		}
	}
}

func TestClearIsSeenEverywhere(t *testing.T) {
	j := newJob(t, 3, 16<<20)
	for i := range 30 {
		j.ranks[i%3].putKey(t, fmt.Sprint(i), data(uint64(i), 1000))
	}
	j.settle()
	j.ranks[1].Probe(t.Context(), "ns", []string{"0"})
	j.ranks[2].Probe(t.Context(), "ns", []string{"0"})
	if n := j.ranks[1].Clear(t.Context(), "ns", false); n != 10 {
		t.Errorf("%d names were here", n)
	}
	for i := range 30 {
		for _, r := range j.ranks {
			r.wantMiss(t, fmt.Sprint(i))
		}
	}
}

func TestBoundPairs(t *testing.T) {
	j := newJob(t, 3, 16<<20)
	bytes, meta := data(1, 4000), data(2, 28)
	j.ranks[0].putKey(t, "bytes", bytes)
	e := ns("meta")
	e.Parent, e.Bound = "bytes", true
	if _, err := j.ranks[0].Put(t.Context(), e, meta, nil); err != nil {
		t.Fatal(err)
	}
	j.settle()
	j.ranks[1].wantAt(t, "meta", meta)
	j.ranks[1].wantAt(t, "bytes", bytes)
	j.ranks[2].Delete(t.Context(), "ns", "bytes")
	for _, r := range j.ranks {
		r.wantMiss(t, "bytes")
		r.wantMiss(t, "meta")
	}
}

func TestADeadRanksBlocksAreMisses(t *testing.T) {
	j := newJob(t, 4, 16<<20)
	for i := range 40 {
		j.ranks[i%4].putKey(t, fmt.Sprint(i), data(uint64(i), 3000))
	}
	j.settle()
	j.world.Kill(3)
	j.ranks[0].wantMiss(t, "3") // nobody knows yet
	j.die(3)
	for i := range 40 {
		for rank, r := range j.ranks[:3] {
			if i%4 == 3 {
				r.wantMiss(t, fmt.Sprint(i))
			} else if rank == 0 || i%4 == 0 {
				r.wantAt(t, fmt.Sprint(i), data(uint64(i), 3000))
			}
		}
	}
}

// TestSegmentsOfOtherRanks: what a rank wrote to the shared directory and
// dropped from memory is read there by others, also when the rank is dead.
func TestSegmentsOfOtherRanks(t *testing.T) {
	j := (&job{t: t, dir: t.TempDir()}).open(3, 8<<20)
	a := j.ranks[0]
	const n = 30
	for i := range n { // much more than fits a's memory
		a.putKey(t, fmt.Sprint(i), data(uint64(i), 1<<20))
	}
	if _, err := a.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	j.settle()
	lustre := 0
	read := func(i int) {
		t.Helper()
		if j.ranks[1].wantAt(t, fmt.Sprint(i), data(uint64(i), 1<<20)) == "lustre" {
			lustre++
		}
	}
	for i := range n / 2 {
		read(i)
	}
	if lustre == 0 {
		t.Error("nothing was read from a segment")
	}
	j.die(0)
	for i := range n {
		if !j.ranks[1].state.ContainsHere("ns", fmt.Sprint(i)) {
			read(i)
		}
	}
	for i := range n {
		j.ranks[2].wantAt(t, fmt.Sprint(i), data(uint64(i), 1<<20))
	}
	if lustre < n/2 {
		t.Errorf("%d blocks were read from segments", lustre)
	}
}
