package policy

import "testing"

// TestShare: what a rank may take and what it adopts for that.
func TestShare(t *testing.T) {
	for name, c := range map[string]struct {
		share          Share
		available, own int64
		adopt          int
	}{
		"alone":                 {Share{Budget: 1000, LiveShare: 0.8}, 1000, 1000, 0},
		"full of its own":       {Share{Budget: 1000, Young: 800, LiveShare: 0.8}, 1000, 1000, 0},
		"much is left":          {Share{Budget: 1000, Orphans: []int64{100, 100, 100}, Young: 100, LiveShare: 0.8}, 1000, 700, 0},
		"little is spare":       {Share{Budget: 1000, Orphans: []int64{100, 100, 100}, Young: 500, LiveShare: 0.8}, 1000, 700, 1},
		"nothing is spare":      {Share{Budget: 1000, Orphans: []int64{100, 100, 100}, Young: 700, LiveShare: 0.8}, 1000, 875, 3},
		"more than all is left": {Share{Budget: 1000, Orphans: []int64{600, 600, 600}, LiveShare: 0.8}, 1000, 0, 2},
		"another job":           {Share{Budget: 1000, OthersUsage: 300, Runs: 1, LiveShare: 0.8}, 700, 700, 0},
		"a greedy job":          {Share{Budget: 1000, OthersUsage: 900, Runs: 1, LiveShare: 0.8}, 500, 500, 0},
		"three greedy jobs":     {Share{Budget: 1200, OthersUsage: 1200, Runs: 3, LiveShare: 0.8}, 300, 300, 0},
		"another job, and left": {Share{Budget: 1000, OthersUsage: 300, Runs: 1, Orphans: []int64{300, 300}, Young: 80, LiveShare: 0.8}, 700, 100, 1},
	} {
		if available, own, adopt := c.share.Available(), c.share.Own(), c.share.Adopt(); available != c.available || own != c.own || adopt != c.adopt {
			t.Errorf("%s: available %d, own %d, adopts %d; want %d, %d, %d", name, available, own, adopt, c.available, c.own, c.adopt)
		}
	}
}

// TestShareSettles: whatever is left, adopting ends, and when nothing is left
// what is available is the rank's own.
func TestShareSettles(t *testing.T) {
	for parts := range 40 {
		e := Share{Budget: 10_000, LiveShare: 0.8, Young: int64(200 * parts)}
		for i := range parts {
			e.Orphans = append(e.Orphans, int64(100+i*37%400))
		}
		for rounds := 0; ; rounds++ {
			n := e.Adopt()
			if n == 0 {
				break
			}
			if e.Orphans = e.Orphans[n:]; rounds > 1 {
				t.Fatalf("%d parts: %d rounds", parts, rounds)
			}
		}
		if spare := int64(0.8*float64(e.Available()-sum(e.Orphans))) - e.Young; len(e.Orphans) > 0 && spare < e.Available()/spareLow {
			t.Errorf("%d parts: %d bytes are spare", parts, spare)
		}
	}
}
