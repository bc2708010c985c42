package draft

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestDraftSorts: as comparing all keys with each other would, whatever they are.
func TestDraftSorts(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var d Draft
		for range 3 { // a draft is used again
			d.Prepare(0, 0)
			for range r.IntN(3000) {
				key := make([]byte, 1+r.IntN(24))
				for i := range key {
					key[i] = byte(r.IntN(1 + r.IntN(256)))
				}
				key[0] = byte(r.IntN(5))
				if len(d.ops) > 0 && r.IntN(3) == 0 {
					key = slices.Clone(d.keyOf(&d.ops[r.IntN(len(d.ops))])) // the same again, or alike
					key[len(key)-1] ^= byte(r.IntN(2))
				}
				d.Set(key, key[:r.IntN(len(key))])
			}
			want := slices.Clone(d.ops)
			slices.SortFunc(want, d.compare)
			if got := d.sorted(); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %d changes are in another order", seed, len(want))
			}
		}
	}
}
