package cascade

import (
	"fmt"
	"slices"
	"testing"

	"cascadekv/cascade/policy"
	"cascadekv/internal/block"
)

// chains is a policy that keeps the chains that were asked for.
type chains struct {
	policy.Policy
	asked [][]uint64
}

func (p *chains) Access(r *policy.Request) {
	if r.Hits > 0 {
		var chain []uint64
		for _, ref := range r.Chain {
			chain = append(chain, ref.Fingerprint)
		}
		p.asked = append(p.asked, chain)
	}
	p.Policy.Access(r)
}

// What an engine asks for by a probe, or by CONTAINS, is one request of the policy, with what is missing, however
// it gets and puts its blocks: together, in pieces, or one by one. Of what is not here at all it
// is passed before the first block enters.
func TestAProbeIsOneRequest(t *testing.T) {
	keys := make([]string, 6)
	var want []uint64
	for i := range keys {
		keys[i] = fmt.Sprint(i)
		want = append(want, block.Fingerprint("ns", keys[i]))
	}
	for name, pieces := range map[string][]int{
		"together": {4}, "in pieces": {2, 2}, "one by one": {1, 1, 1, 1}, "nothing is there": nil, "fewer than advised": {1}, "by CONTAINS": {4}, "by CONTAINS of few": {4},
	} {
		t.Run(name, func(t *testing.T) {
			got := &chains{}
			r := newRig(t, 8<<20, false, func(o *Options) {
				o.NewPolicy = func(name string, capacity int64) (p policy.Policy, err error) {
					got.Policy, err = policy.New(name, capacity)
					return got, err
				}
			})
			parent := func(i int) string {
				if i == 0 {
					return ""
				}
				return keys[i-1]
			}
			stored := 0
			if pieces != nil {
				stored = 4
			}
			for i := range stored {
				r.put(Entry{Namespace: "ns", Key: keys[i], Parent: parent(i)}, []byte(keys[i]))
			}
			got.asked = nil
			hits := 0
			asked := make([][]byte, len(keys))
			for i, key := range keys {
				asked[i] = []byte(key)
			}
			var found []bool
			switch name {
			case "by CONTAINS":
				found = r.ContainsBatch(t.Context(), "ns", asked)
			case "by CONTAINS of few":
				found, _ = r.Here().Contains("ns", asked)
			default:
				hits = r.Probe(t.Context(), "ns", keys).Hits
			}
			for _, is := range found {
				if is {
					hits++
				}
			}
			for _, key := range asked {
				clear(key) // it is the client's again
			}
			if hits != stored || len(got.asked) != 0 {
				t.Fatalf("%d hits; asked for: %v", hits, got.asked)
			}
			at := 0
			for _, n := range pieces {
				views, err := r.GetBatch(t.Context(), "ns", keys[at:at+n])
				if err != nil {
					t.Fatal(err)
				}
				for _, v := range views {
					v.Release()
				}
				at += n
			}
			for i := stored; i < len(keys); i++ {
				r.put(Entry{Namespace: "ns", Key: keys[i], Parent: parent(i)}, []byte(keys[i]))
			}
			if len(got.asked) != 1 || !slices.Equal(got.asked[0], want) {
				t.Errorf("asked for: %v, want once %v", got.asked, want)
			}
			if v, err := r.Get(t.Context(), "ns", keys[0]); err != nil {
				t.Error(err)
			} else if v.Release(); len(got.asked) != 2 {
				t.Errorf("a get of another request is not passed: %v", got.asked)
			}
		})
	}
}
