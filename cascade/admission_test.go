package cascade

import (
	"fmt"
	"testing"
	"time"

	"cascadekv/cascade/policy"
)

// choosy admits nothing while refuse is set.
type choosy struct {
	policy.Policy
	refuse *bool
}

func (c choosy) Admit(now time.Duration, m policy.Meta) bool {
	return !*c.refuse && c.Policy.Admit(now, m)
}

// TestPolicyRefusesWhatComesUp: what a policy does not admit is served all the same,
// from the cold tier or a slower memory tier, and stays where it is.
func TestPolicyRefusesWhatComesUp(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, change func(*Options)) *rig{
		"from the cold tier": func(t *testing.T, change func(*Options)) *rig { return newRig(t, 4<<20, true, change) },
		"from memory":        func(t *testing.T, change func(*Options)) *rig { r, _ := deviceRig(t, false, change); return r },
	} {
		t.Run(name, func(t *testing.T) {
			refuse := false
			r := make(t, func(o *Options) {
				o.Policy = policy.LRU // which refuses nothing itself
				o.NewPolicy = func(name string, capacity int64) (policy.Policy, error) {
					p, err := policy.New(name, capacity)
					return choosy{p, &refuse}, err
				}
			})
			const n, size = 40, 300_000 // more than the first tier holds
			for i := range n {
				e := ns(fmt.Sprint(i))
				e.Prefix = true
				r.put(e, data(uint64(i), size))
			}
			first := r.Stats().Tiers[0].Name
			below := ""
			for i := range n {
				if tiers := r.from(fmt.Sprint(i)); len(tiers) > 0 && tiers[0] != first {
					below = fmt.Sprint(i)
					break
				}
			}
			if below == "" {
				t.Fatal("nothing left the first tier")
			}
			var i uint64
			fmt.Sscan(below, &i)
			refuse = true
			for range 2 {
				if tier := r.want(below, data(i, size)); tier == first {
					t.Fatalf("served from %s", tier)
				}
			}
			refuse = false
			r.want(below, data(i, size))
			if tier := r.want(below, data(i, size)); tier != first {
				t.Errorf("admitted, and served from %s", tier)
			}
		})
	}
}
