package dht

import (
	"fmt"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/sim"
)

// cutOff has rank 2 hold "old" and be cut off from rank 1 alone, which clears at stamp 100.
func cutOff(t *testing.T, r *rig) {
	t.Helper()
	r.shelf[2].put("old", 5, bytesOf("old", 0), true)
	r.settled()
	r.world.Partition([]fabric.Rank{0}, []fabric.Rank{1}, []fabric.Rank{2})
	if err := r.nodes[1].Clear(t.Context(), "ns", false, 100); err == nil {
		t.Error("ranks that were cut off have cleared")
	}
	if !r.shelf[2].has("old") {
		t.Fatal("a rank that was cut off has cleared")
	}
}

// A rank that did not hear of a clearing loses what was put before it once it answers, and
// nothing else; nobody repeats it then.
func TestAClearingIsRepeated(t *testing.T) {
	inBubble(t, 3, sim.Options{}, func(t *testing.T, r *rig) {
		cutOff(t, r)
		r.shelf[2].put("new", 101, bytesOf("new", 0), true)
		time.Sleep(time.Minute)
		r.world.Heal()
		time.Sleep(5 * time.Second)
		r.settled()
		if r.shelf[2].has("old") || !r.shelf[2].has("new") {
			t.Errorf("old is there: %v, new: %v", r.shelf[2].has("old"), r.shelf[2].has("new"))
		}
		for rank, n := range r.nodes {
			found := n.Locate(t.Context(), "ns", []string{"old", "new"})
			if found[0] != nil || (found[1] != nil) != (rank != 2) {
				t.Errorf("rank %d finds %v", rank, found)
			}
		}
		before := r.messages(1)
		time.Sleep(time.Minute)
		if sent := r.messages(1) - before; sent > 0 {
			t.Errorf("%d messages once all have confirmed", sent)
		}
	})
}

// What others heard of, its owner did not: they do not find it there.
func TestWhatWasClearedIsNotFound(t *testing.T) {
	inBubble(t, 3, sim.Options{}, func(t *testing.T, r *rig) {
		for i := range 30 {
			r.shelf[2].put(fmt.Sprint(i), 5, bytesOf("x", i), true)
		}
		r.settled()
		r.shelf[1].node.clearings.add(clearedMessage{"ns", false, 100}, true, time.Now())
		time.Sleep(5 * time.Second) // all have heard of it, and nobody has more names
		for i := range 30 {
			r.shelf[2].keep(fmt.Sprint(i), 5, bytesOf("x", i), true) // as from segments
			r.nodes[2].Publish(r.shelf[2].State("ns", fmt.Sprint(i)))
		}
		r.settled()
		for i := range 30 {
			if found := r.nodes[0].Locate(t.Context(), "ns", []string{fmt.Sprint(i)}); found[0] != nil {
				t.Errorf("%d is found: %v", i, found[0])
			}
		}
	})
}

// A rank that is gone is left alone. It hears of the clearing when it is back, as it was or begun
// anew, unless that is later than clearings are remembered.
func TestARankReturnsAfterAClearing(t *testing.T) {
	for _, anew := range []bool{false, true} {
		for _, after := range []time.Duration{time.Minute, clearedFor + time.Minute} {
			t.Run(fmt.Sprintf("anew %v, after %v", anew, after), func(t *testing.T) {
				inBubble(t, 3, sim.Options{}, func(t *testing.T, r *rig) {
					cutOff(t, r)
					for _, rank := range []fabric.Rank{0, 1} {
						r.nodes[rank].SetMembers(r.members(fabric.Gone, 2)...)
					}
					r.world.Partition([]fabric.Rank{0, 1}, []fabric.Rank{2})
					time.Sleep(after)
					if anew {
						_ = r.nodes[2].Close()
						r.start(2, 2)
						r.shelf[2].keep("old", 5, bytesOf("old", 0), true)
						r.nodes[2].SetMembers(r.members(fabric.Alive, 0, 1)...)
					}
					r.world.Heal()
					r.tell(r.members(fabric.Alive, 2)...)
					time.Sleep(5 * time.Second)
					if has := r.shelf[2].has("old"); has != (after > clearedFor) {
						t.Errorf("it has what was cleared: %v", has)
					}
				})
			})
		}
	}
}

// So many clearings are remembered, of each namespace the last.
func TestClearingsAreBounded(t *testing.T) {
	var c clearings
	now := time.Unix(1_800_000_000, 0)
	for i := range maxCleared + 10 {
		for stamp := range uint64(3) {
			c.add(clearedMessage{fmt.Sprint(i), false, 10 + stamp}, true, now)
		}
		c.add(clearedMessage{fmt.Sprint(i), false, 5}, true, now)
	}
	if len(c.list) != maxCleared || c.before("9") != 0 || c.before("10") != 12 || c.before("elsewhere") != 0 {
		t.Errorf("%d are remembered, with the stamps %d, %d and %d", len(c.list), c.before("9"), c.before("10"), c.before("elsewhere"))
	}
	c.add(clearedMessage{"", true, 11}, false, now.Add(time.Second))
	if c.before("20") != 12 || c.before("elsewhere") != 11 || c.before("\x00contents") != 0 {
		t.Errorf("stamps %d, %d, and %d of contents", c.before("20"), c.before("elsewhere"), c.before("\x00contents"))
	}
	c.sweep(now.Add(clearedFor))
	if c.before("20") != 11 || len(c.unconfirmed(Member{})) != 0 {
		t.Errorf("it is remembered longer than %v", clearedFor)
	}
}
