package cascade

import (
	"fmt"
	"testing"
	"time"

	"cascadekv/cascade/load"
	"cascadekv/cascade/residency"
)

// coldChains has one rank with chains of blocks in its own files alone.
func coldChains(t *testing.T, chains, blocks int) (j *job, r *jobRank, keys [][]string) {
	t.Helper()
	j = &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
	j.open(1, 16<<20)
	r = j.ranks[0]
	for c := range chains {
		var chain []string
		for i := range blocks {
			chain = append(chain, fmt.Sprint(c, ".", i))
			r.putKey(t, chain[i], data(uint64(1000*c+i), 16<<10))
		}
		keys = append(keys, chain)
	}
	j.drainAll(0)
	r.dropMemory(t)
	return j, r, keys
}

func wordsOf(keys []string) (words [][]byte) {
	for _, key := range keys {
		words = append(words, []byte(key))
	}
	return words
}

// wantPrefetched waits until no read is under way, and wants so many blocks brought ahead, of use and in vain.
func (r *jobRank) wantPrefetched(t *testing.T, brought, hits, wasted uint64) {
	t.Helper()
	r.wantNothingComes(t)
	if st := r.Stats(); st.Prefetched != brought || st.PrefetchHits != hits || st.PrefetchWasted != wasted {
		t.Errorf("%d brought ahead, %d of use, %d in vain; want %d, %d, %d", st.Prefetched, st.PrefetchHits, st.PrefetchWasted, brought, hits, wasted)
	}
}

// TestOwnColdChainsAreBroughtAhead: the first blocks that a look-up finds in this rank's own files alone are in memory
// before their gets, and none that is not worth loading.
func TestOwnColdChainsAreBroughtAhead(t *testing.T) {
	const n, first = 12, load.PrefetchBlocks
	for name, c := range map[string]struct {
		look func(r *jobRank, keys []string)
		want uint64
	}{
		"PROBE":    {func(r *jobRank, keys []string) { r.Probe(t.Context(), "ns", keys) }, first},
		"CONTAINS": {func(r *jobRank, keys []string) { r.ContainsBatch(t.Context(), "ns", wordsOf(keys)) }, first},
		"CONTAINS behind what is missing": {func(r *jobRank, keys []string) {
			r.ContainsBatch(t.Context(), "ns", wordsOf(append([]string{"none"}, keys...)))
		}, 0},
		"ADVISE":            {func(r *jobRank, keys []string) { Advise(t.Context(), r.Store, "ns", keys, Ask{PerBlock: time.Hour}) }, first},
		"ADVISE against it": {func(r *jobRank, keys []string) { Advise(t.Context(), r.Store, "ns", keys, Ask{}) }, 0},
		"STAT":              {func(r *jobRank, keys []string) { r.Contains(t.Context(), "ns", keys[0]) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, r, chains := coldChains(t, 1, n)
			keys := chains[0]
			c.look(r, keys)
			r.wantPrefetched(t, c.want, 0, 0)
			c.look(r, keys) // they are here, or on their way: the next ones
			more := min(c.want, n-first)
			r.wantPrefetched(t, c.want+more, 0, 0)
			promoted := r.Stats().Tiers[0].Promoted
			if promoted != c.want+more {
				t.Errorf("%d blocks are in memory, want %d", promoted, c.want+more)
			}
			for i, key := range keys {
				tier := r.wantAt(t, key, data(uint64(i), 16<<10))
				if c.want > 0 && tier != "shm" {
					t.Errorf("%s is served from %q", key, tier)
				}
			}
			r.wantPrefetched(t, c.want+more, c.want+more, 0)
		})
	}
}

// TestLookUpsThatAreNoLoads: what is brought ahead in vain is counted, and soon none is, until some minutes later; a
// CONTAINS of few keys takes no wait then.
func TestLookUpsThatAreNoLoads(t *testing.T) {
	j, r, chains := coldChains(t, 8, 4)
	for i, keys := range chains[:6] {
		if i < 3 {
			r.Probe(t.Context(), "ns", keys)
		} else {
			r.ContainsBatch(t.Context(), "ns", wordsOf(keys))
		}
		r.wantNothingComes(t)
		j.late.Add(int64(residency.PrefetchFor + time.Second))
		r.Sweep()
	}
	r.wantPrefetched(t, 4, 0, 4)
	if _, ok := r.Here().Contains("ns", wordsOf(chains[6])); !ok {
		t.Error("a look-up that brings nothing ahead waits")
	}
	j.late.Add(int64(10 * time.Minute))
	r.Sweep()
	if _, ok := r.Here().Contains("ns", wordsOf(chains[7])); ok {
		t.Error("after ten minutes nothing is brought ahead")
	}
	r.ContainsBatch(t.Context(), "ns", wordsOf(chains[7]))
	r.wantPrefetched(t, 8, 0, 4)
}

// TestBroughtAheadHasABound: of however many chains that are looked up.
func TestBroughtAheadHasABound(t *testing.T) {
	_, r, chains := coldChains(t, 10, 8)
	for range 3 {
		for _, keys := range chains {
			r.Probe(t.Context(), "ns", keys)
		}
	}
	r.wantPrefetched(t, 32, 0, 0)
	r.wantAt(t, chains[0][0], data(0, 16<<10))
	r.Probe(t.Context(), "ns", chains[9])
	r.wantPrefetched(t, 33, 1, 0)
}

// TestBroughtAheadOnce: a block that leaves memory before its get counts once, and is not read again and again for nothing.
func TestBroughtAheadOnce(t *testing.T) {
	j, r, chains := coldChains(t, 1, 8)
	keys := chains[0]
	for range 20 {
		r.Probe(t.Context(), "ns", keys[:1])
		r.wantPrefetched(t, 1, 0, 0)
		r.dropMemory(t)
	}
	for i, key := range keys {
		r.wantAt(t, key, data(uint64(i), 16<<10))
	}
	r.wantPrefetched(t, 1, 1, 0)
	r.dropMemory(t)
	j.late.Add(int64(time.Hour))
	r.Sweep()
	r.Probe(t.Context(), "ns", keys)
	r.wantPrefetched(t, 9, 1, 0)
}

// TestBroughtAheadIsAPartOfMemory: what is brought ahead has room in memory, beside all else, until its get.
func TestBroughtAheadIsAPartOfMemory(t *testing.T) {
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 64 << 20}
	j.open(1, 4<<20)
	r := j.ranks[0]
	var keys []string
	for i := range 8 {
		keys = append(keys, fmt.Sprint("k", i))
		r.putKey(t, keys[i], data(uint64(i), 256<<10))
	}
	j.drainAll(0)
	r.dropMemory(t)
	r.Probe(t.Context(), "ns", keys)
	r.wantPrefetched(t, 4, 0, 0)
	for i, key := range keys {
		r.wantAt(t, key, data(uint64(i), 256<<10))
	}
	r.wantPrefetched(t, 4, 4, 0)
}

// wantNothingComes waits until no read that a hint or a look-up caused is under way.
func (r *jobRank) wantNothingComes(t *testing.T) {
	t.Helper()
	eventually(t, "nothing is on its way", func() bool {
		blocks, bytes := load.OnItsWay(r.load)
		return blocks == 0 && bytes == 0
	})
}
