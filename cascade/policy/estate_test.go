package policy

import "testing"

// TestEstate: what a rank may take and what it inherits for that.
func TestEstate(t *testing.T) {
	for name, c := range map[string]struct {
		estate    Estate
		room, own int64
		take      int
	}{
		"alone":                 {Estate{Budget: 1000, Fill: 0.8}, 1000, 1000, 0},
		"full of its own":       {Estate{Budget: 1000, Young: 800, Fill: 0.8}, 1000, 1000, 0},
		"much is left":          {Estate{Budget: 1000, Left: []int64{100, 100, 100}, Young: 100, Fill: 0.8}, 1000, 700, 0},
		"little is spare":       {Estate{Budget: 1000, Left: []int64{100, 100, 100}, Young: 500, Fill: 0.8}, 1000, 700, 1},
		"nothing is spare":      {Estate{Budget: 1000, Left: []int64{100, 100, 100}, Young: 700, Fill: 0.8}, 1000, 875, 3},
		"more than all is left": {Estate{Budget: 1000, Left: []int64{600, 600, 600}, Fill: 0.8}, 1000, 0, 2},
		"another job":           {Estate{Budget: 1000, Beside: 300, Runs: 1, Fill: 0.8}, 700, 700, 0},
		"a greedy job":          {Estate{Budget: 1000, Beside: 900, Runs: 1, Fill: 0.8}, 500, 500, 0},
		"three greedy jobs":     {Estate{Budget: 1200, Beside: 1200, Runs: 3, Fill: 0.8}, 300, 300, 0},
		"another job, and left": {Estate{Budget: 1000, Beside: 300, Runs: 1, Left: []int64{300, 300}, Young: 80, Fill: 0.8}, 700, 100, 1},
	} {
		if room, own, take := c.estate.Room(), c.estate.Own(), c.estate.Take(); room != c.room || own != c.own || take != c.take {
			t.Errorf("%s: room %d, own %d, takes %d; want %d, %d, %d", name, room, own, take, c.room, c.own, c.take)
		}
	}
}

// TestEstateSettles: whatever is left, taking over ends, and when nothing is left
// the room is the rank's own.
func TestEstateSettles(t *testing.T) {
	for parts := range 40 {
		e := Estate{Budget: 10_000, Fill: 0.8, Young: int64(200 * parts)}
		for i := range parts {
			e.Left = append(e.Left, int64(100+i*37%400))
		}
		for rounds := 0; ; rounds++ {
			n := e.Take()
			if n == 0 {
				break
			}
			if e.Left = e.Left[n:]; rounds > 1 {
				t.Fatalf("%d parts: %d rounds", parts, rounds)
			}
		}
		if spare := int64(0.8*float64(e.Room()-sum(e.Left))) - e.Young; len(e.Left) > 0 && spare < e.Room()/spareLow {
			t.Errorf("%d parts: %d bytes are spare", parts, spare)
		}
	}
}

// TestOldLeavesFirst: what was old when it came leaves before all else of its
// class, in the order in which it came, until it is used.
func TestOldLeavesFirst(t *testing.T) {
	for _, name := range Names() {
		p, err := New(name, 0)
		if err != nil {
			t.Fatal(err)
		}
		young := p.Insert(0, Meta{Size: 1, Refs: 1})
		first := p.Insert(0, Meta{Size: 1, Refs: 1, Old: true})
		used := p.Insert(0, Meta{Size: 1, Refs: 1, Old: true})
		last := p.Insert(0, Meta{Size: 1, Refs: 1, Old: true})
		p.Access(requestFor(0, 0, used))
		for _, want := range []Node{first, last, young, used} {
			if n, ok := p.Victim(); !ok || n != want {
				t.Errorf("%s: victim %d, want %d", name, n, want)
			}
			p.Remove(want, true)
		}
	}
}
