package cascade

import (
	"fmt"
	"testing"

	"cascadekv/cascade/policy"
)

// counting counts the blocks that a policy is told of.
type counting struct {
	policy.Policy
	touched int
}

func (c *counting) Access(r *policy.Request) {
	c.touched += len(r.Chain)
	c.Policy.Access(r)
}

// TestUncounted: what is got once more is counted once, by whoever knows where it came from in the end.
func TestUncounted(t *testing.T) {
	r := newRig(t, 16<<20, false)
	c := &counting{Policy: r.state.Mem[0].Policy}
	r.state.Mem[0].Policy = c
	r.put(ns("k"), data(1, 100))
	put := c.touched
	keys := []string{"k", "none"}
	views, err := r.GetBatch(t.Context(), "ns", keys, Uncounted)
	if err != nil || views[0] == nil || views[1] != nil {
		t.Fatalf("%v, %v", views, err)
	}
	if st := r.Stats(); st.Hits+st.Misses != 0 || c.touched != put {
		t.Errorf("%d hits, %d misses, %d blocks asked for", st.Hits, st.Misses, c.touched-put)
	}
	CountGot(r.Store, "ns", views)
	views[0].Release()
	if st := r.Stats(); st.Hits != 1 || st.Misses != 1 || st.Tiers[0].Hits != 1 || c.touched != put {
		t.Errorf("counted are %d hits, %d misses, %+v", st.Hits, st.Misses, st.Tiers[0])
	}
	if views, err = r.GetBatch(t.Context(), "ns", keys); err != nil {
		t.Fatal(err)
	}
	views[0].Release()
	if st := r.Stats(); st.Hits != 2 || st.Misses != 2 || c.touched != put+2 {
		t.Errorf("a request counts %d hits, %d misses, %d blocks asked for", st.Hits-1, st.Misses-1, c.touched-put)
	}
	checkInvariants(t, r.Store)
}

// A put costs the same at the head of a chain and 3000 blocks below it: the
// policies are told of what was put, by each way to put it.
func TestPutsCostTheSameAtAnyDepth(t *testing.T) {
	const depth, batch = 3000, 10
	for name, put := range map[string]func(r *rig, entries []Entry){
		"Put": func(r *rig, entries []Entry) {
			for _, e := range entries {
				r.put(e, data(hashOf(e.Key), 100))
			}
		},
		"Stage": func(r *rig, entries []Entry) {
			for _, e := range entries {
				if err := r.stage(e, data(hashOf(e.Key), 100)); err != nil {
					t.Fatal(err)
				}
			}
		},
		"PutBatch": func(r *rig, entries []Entry) {
			items := make([]PutItem, len(entries))
			for i, e := range entries {
				items[i] = PutItem{e, data(hashOf(e.Key), 100)}
			}
			if _, err := r.PutBatch(t.Context(), items); err != nil {
				t.Fatal(err)
			}
		},
		"PutFrom": func(r *rig, entries []Entry) {
			items := make([]FuncItem, len(entries))
			for i, e := range entries {
				p := data(hashOf(e.Key), 100)
				items[i] = FuncItem{Entry: e, Size: 100, Write: func(st *Stage) error { st.Append(p); return nil }}
			}
			for _, err := range r.PutBatchFunc(t.Context(), items, together, Hint{}) {
				if err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 16<<20, false)
			c := &counting{Policy: r.state.Mem[0].Policy}
			r.state.Mem[0].Policy = c
			parent := ""
			for i := 0; i < depth; i += batch {
				var entries []Entry
				for j := range batch {
					e := ns(fmt.Sprint(i + j))
					e.Parent, parent = parent, e.Key
					entries = append(entries, e)
				}
				put(r, entries)
			}
			if c.touched != depth {
				t.Errorf("%d puts touched %d blocks", depth, c.touched)
			}
			checkInvariants(t, r.Store)
		})
	}
}
