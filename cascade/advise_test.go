package cascade

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cascadekv/tiers"
)

// slowFiles is a cold tier each of whose reads takes a while more.
type slowFiles struct {
	tiers.Files
	wait time.Duration
}

func (s slowFiles) ReadBatch(ctx context.Context, reads []tiers.Read) []error {
	time.Sleep(s.wait)
	return s.Files.ReadBatch(ctx, reads)
}

// TestAdviseOfASlowTier: once some loads were slow, what lies in that tier is not worth loading for a
// client that computes faster, and is not brought here for it; what is in memory is.
func TestAdviseOfASlowTier(t *testing.T) {
	const n, size = 8, 64 << 10
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
	j.open(1, 8<<20)
	r := j.ranks[0]
	r.state.Cold.Files = slowFiles{r.state.Cold.Files, 20 * time.Millisecond}
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
		a := Advise(t.Context(), r.Store, "ns", keys, perBlock)
		if a.Hits != n || a.Blocks != want {
			t.Errorf("a block takes %v to compute: %d of %d are to be loaded, want %d: %+v", perBlock, a.Blocks, a.Hits, want, a.Runs)
		}
		if len(a.Runs) != 2 || a.Runs[0].LoadUS >= 10_000 || a.LoadUS() < 10_000 {
			t.Errorf("runs %+v", a.Runs)
		}
	}
}

// TestPrefillIsLearned: what is looked for, computed and put says how long computing takes, whichever way it
// is looked for; then that decides what is advised, and until then all is worth loading.
func TestPrefillIsLearned(t *testing.T) {
	const n, per = 8, 50 * time.Millisecond
	for name, look := range map[string]func(r *rig, keys []string){
		"probe":  func(r *rig, keys []string) { r.Probe(t.Context(), "ns", keys) },
		"advise": func(r *rig, keys []string) { Advise(t.Context(), r.Store, "ns", keys, Learned) },
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
			learned := func(keys []string) Advice { return Advise(t.Context(), r.Store, "ns", keys, Learned) }
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
