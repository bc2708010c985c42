package policy

import (
	"math/rand/v2"
	"testing"
)

// What was used is known by age, in their order, until as many uses came as are remembered.
func TestRecency(t *testing.T) {
	rng := rand.New(rand.NewPCG(28, 2))
	var r Recency
	if got := r.Last(7); got != 0 {
		t.Errorf("age %d before any use", got)
	}
	var ages [Ages + 3][]uint64
	for i := range ages {
		for range recencyUses {
			f := rng.Uint64()
			ages[i] = append(ages[i], f)
			r.Use(f)
		}
	}
	for i, used := range ages {
		least := max(Ages-(len(ages)-1-i), 0)
		younger := 0
		for _, f := range used {
			switch got := r.Last(f); {
			case int(got) < least:
				t.Fatalf("used in age %d of %d: %d, at least %d", i, len(ages), got, least)
			case int(got) > least:
				younger++
			}
		}
		if most := len(used) / 5; younger > most {
			t.Errorf("age %d of %d: %d of %d look younger", i, len(ages), younger, len(used))
		}
	}
	wrong := 0
	for range 10_000 {
		if r.Last(rng.Uint64()) > 0 {
			wrong++
		}
	}
	if wrong > 2_000 {
		t.Errorf("%d of 10,000 blocks that were never used look used", wrong)
	}
}
