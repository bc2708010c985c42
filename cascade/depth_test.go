package cascade

import (
	"fmt"
	"strings"
	"testing"

	"cascadekv/cascade/residency"
)

const (
	deepBlocks = 20
	deepSize   = 10_000
)

// deep is a chain: what is put of it, and under which parents.
func deep() (all []PutItem) {
	for i := range deepBlocks {
		e := ns(fmt.Sprint("k", i))
		if i > 0 {
			e.Parent = all[i-1].Entry.Key
		}
		all = append(all, PutItem{e, data(uint64(i), deepSize)})
	}
	return all
}

// wantDeep checks that the policy of a rank takes each block of the chain to be at its place.
func wantDeep(t *testing.T, s *Store) {
	t.Helper()
	for i, want := range map[int]string{0: "1 block", 1: "2-3 blocks", 6: "4-7 blocks", deepBlocks - 1: "16-31 blocks"} {
		r := why(t, s, fmt.Sprint("k", i))
		if got := r.Levels[0].Class; !strings.HasSuffix(got, "request of "+want) {
			t.Errorf("block %d is %q, want one of a request of %s", i, got, want)
		}
	}
}

// TestPolicyLearnsDepth: however a block comes in that no request has asked for, its policy
// learns how many blocks come before it.
func TestPolicyLearnsDepth(t *testing.T) {
	for name, come := range map[string]func(t *testing.T, r *rig){
		"content": func(_ *testing.T, r *rig) {
			for _, it := range deep() {
				r.put(it.Entry, it.Data)
			}
		},
		"name": func(t *testing.T, r *rig) {
			for _, it := range deep() {
				if err := r.stage(it.Entry, it.Data); err != nil {
					t.Fatal(err)
				}
			}
		},
		"batch": func(t *testing.T, r *rig) {
			if _, err := r.PutBatch(t.Context(), deep()); err != nil {
				t.Fatal(err)
			}
		},
		"completed": func(t *testing.T, r *rig) { // to blocks that are in the cold tier only
			for i, it := range deep() {
				it.Entry.Key = fmt.Sprint("other", i)
				if i > 0 {
					it.Entry.Parent = fmt.Sprint("other", i-1)
				}
				r.put(it.Entry, it.Data)
			}
			r.drained()
			for m := r.state.Last(); m.Memory.Usage().Blocks > 0; {
				if err := r.evict.EvictOne(t.Context(), m, 1); err != nil {
					t.Fatal(err)
				}
			}
			for _, it := range deep() {
				if err := r.stage(it.Entry, it.Data); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "the ids are complete", func() bool { return r.Stats().PendingIDs == 0 })
		},
		"inferred": func(_ *testing.T, r *rig) { // after the puts: nobody names parents
			var keys []string
			for _, it := range deep() {
				it.Entry.Parent = ""
				r.put(it.Entry, it.Data)
				keys = append(keys, it.Entry.Key)
			}
			residency.Put(r.state, "ns", keys)
		},
		"recovered": func(t *testing.T, r *rig) {
			for _, it := range deep() {
				r.put(it.Entry, it.Data)
			}
			r.crash()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 8<<20, true)
			come(t, r)
			wantDeep(t, r.Store)
		})
	}
}
