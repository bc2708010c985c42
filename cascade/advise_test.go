package cascade

import (
	"fmt"
	"testing"
	"time"

	"cascadekv/internal/block"
)

// TestAdviseOfASlowTier: once some loads were slow, what lies in that tier is not worth loading for a
// client that computes faster, and is not brought here for it; what is in memory is.
func TestAdviseOfASlowTier(t *testing.T) {
	const n, size = 8, 64 << 10
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
	j.open(1, 8<<20)
	r := j.ranks[0]
	r.cold.set(readsTake(20 * time.Millisecond))
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprint("k", i))
		r.putKey(t, keys[i], data(uint64(i), size))
	}
	j.drainAll(0)
	r.dropMemory(t)
	for i := range n / 2 {
		r.wantAt(t, keys[i], data(uint64(i), size)) // in memory from then on
	}
	for perBlock, want := range map[time.Duration]int{time.Second: n, time.Millisecond: n / 2, 0: 0} {
		a := Advise(t.Context(), r.Store, "ns", keys, Ask{PerBlock: perBlock})
		if a.Hits != n || a.Blocks != want {
			t.Errorf("a block takes %v to compute: %d of %d are to be loaded, want %d: %+v", perBlock, a.Blocks, a.Hits, want, a.Runs)
		}
		if len(a.Runs) != 2 || a.Runs[0].LoadUS >= 10_000 || a.LoadUS() < 10_000 {
			t.Errorf("runs %+v", a.Runs)
		}
	}
}

// TestAdviseByRate: a client may say how many tokens it computes a second instead of how long a block takes, if the
// namespace's layout says how many tokens a block has. Without that all is worth loading.
func TestAdviseByRate(t *testing.T) {
	const n, tokens = 4, 16
	r := newRig(t, 8<<20, false)
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprint("k", i))
		r.put(ns(keys[i]), data(uint64(i), 1000))
	}
	ask := func(a Ask) Advice { return Advise(t.Context(), r.Store, "ns", keys, a) }
	if a := ask(Ask{Rate: 1e12}); a.Blocks != n || a.Tokens != -1 || a.PerBlock != 0 {
		t.Errorf("without a layout: %d blocks, %d tokens, %v each", a.Blocks, a.Tokens, a.PerBlock)
	}
	if err := r.Layouts().Set("ns", block.Layout{Tokens: tokens}); err != nil {
		t.Fatal(err)
	}
	for rate, want := range map[float64]struct {
		blocks int
		each   time.Duration
	}{1e12: {0, 0}, 8: {n, 2 * time.Second}, 1e-9: {n, time.Hour}} {
		if a := ask(Ask{Rate: rate}); a.Blocks != want.blocks || a.Tokens != int64(want.blocks*tokens) || a.PerBlock != want.each {
			t.Errorf("%v tokens a second: %d blocks, %d tokens, %v each", rate, a.Blocks, a.Tokens, a.PerBlock)
		}
	}
	if a := ask(Ask{PerBlock: time.Second}); a.Blocks != n || a.Tokens != n*tokens {
		t.Errorf("by the time of a block: %d blocks, %d tokens", a.Blocks, a.Tokens)
	}
}

// TestPrefillIsLearned: what is looked for, computed and put says how long computing takes, whichever way it
// is looked for; then that decides what is advised, and until then all is worth loading.
func TestPrefillIsLearned(t *testing.T) {
	const n, per = 8, 50 * time.Millisecond
	for name, look := range map[string]func(r *rig, keys []string){
		"probe":  func(r *rig, keys []string) { r.Probe(t.Context(), "ns", keys) },
		"advise": func(r *rig, keys []string) { Advise(t.Context(), r.Store, "ns", keys, Ask{PerBlock: Learned}) },
		"contains": func(r *rig, keys []string) {
			words := make([][]byte, len(keys))
			for i, k := range keys {
				words[i] = []byte(k)
			}
			r.ContainsBatch(t.Context(), "ns", words)
		},
		"here": func(r *rig, keys []string) {
			words := make([][]byte, len(keys))
			for i, k := range keys {
				words[i] = []byte(k)
			}
			r.Here().Contains("ns", words)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 8<<20, false)
			learned := func(keys []string) Advice { return Advise(t.Context(), r.Store, "ns", keys, Ask{PerBlock: Learned}) }
			var keys []string
			for c := range 4 {
				keys = keys[:0]
				for i := range n {
					keys = append(keys, fmt.Sprint("c", c, "k", i))
				}
				look(r, keys)
				for i, k := range keys {
					r.advance(per)
					if c%2 == 0 {
						r.put(ns(k), data(uint64(n*c+i), 1000))
					} else if err := r.stage(ns(k), data(uint64(n*c+i), 1000)); err != nil {
						t.Fatal(err)
					}
				}
				if a := learned(keys); a.Hits != n || a.Blocks != n || (a.PerBlock > 0) != (c >= 2) {
					t.Errorf("after %d chains: %d of %d are to be loaded, at %v", c+1, a.Blocks, a.Hits, a.PerBlock)
				}
			}
			if got := learned(keys).PerBlock; got < per*9/10 || got > per*11/10 {
				t.Errorf("a block takes %v, want %v", got, per)
			}
			if got := r.in("ns").PrefillBlockUS; got < per.Microseconds()*9/10 {
				t.Errorf("the statistics say %d us", got)
			}
		})
	}
}
