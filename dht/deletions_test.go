package dht

import (
	"fmt"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/sim"
)

// TestADeleteThatComesLate: a home that hung takes in a deletion when whoever sent it has given up, and
// somebody put the name since.
func TestADeleteThatComesLate(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		key := r.homed(1, 2)
		stamp := func() uint64 { return uint64(time.Now().UnixNano()) }
		r.shelf[3].put(key, stamp(), bytesOf(key, 1), false)
		r.settled()
		m := stampMessage{Namespace: "ns", Key: key, Stamp: stamp()}
		late, err := encode(kindDelete, &m)
		if err != nil {
			t.Fatal(err)
		}
		r.world.Partition([]fabric.Rank{0, 1, 3}, []fabric.Rank{2})
		if err := r.nodes[0].Delete(t.Context(), "ns", key, m.Stamp); err == nil {
			t.Error("a home that hangs has answered")
		}
		time.Sleep(time.Second)
		r.shelf[3].put(key, stamp(), bytesOf(key, 2), true)
		r.world.Heal()
		r.settled()
		if _, err := (server{r.nodes[2]}).Answer(t.Context(), 0, late); err != nil {
			t.Error(err)
		}
		r.settled()
		for _, rank := range []fabric.Rank{0, 1, 2} {
			r.owners(rank, key, 3)
		}
		if !r.shelf[3].has(key) {
			t.Error("what was put after a deletion was answered is gone")
		}
	})
}

// TestADeleteThatNoHomeAnswers: homes that hang while a name is deleted hear of it when they answer.
func TestADeleteThatNoHomeAnswers(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		key := r.homed(1, 2)
		r.shelf[3].put(key, 5, bytesOf(key, 1), true)
		r.settled()
		r.world.Partition([]fabric.Rank{0, 3}, []fabric.Rank{1, 2})
		if err := r.nodes[0].Delete(t.Context(), "ns", key, 5); err == nil {
			t.Error("homes that hang have answered")
		}
		time.Sleep(5 * time.Minute)
		r.world.Heal()
		time.Sleep(2 * retryMost)
		r.settled()
		r.owners(0, key)
		if r.shelf[3].has(key) {
			t.Error("the owner of a deleted name did not hear of it")
		}
		r.shelf[0].put(key, 9, bytesOf(key, 2), false)
		r.settled()
		r.owners(3, key, 0)
	})
}

// TestADeleteWhileARankIsAway: a rank that does not answer for some minutes has copies of which no home has
// heard, or of which homes have heard that are no homes when it is back. Names that were deleted meanwhile
// stay deleted, on the side of those homes, and on both.
func TestADeleteWhileARankIsAway(t *testing.T) {
	for _, state := range []fabric.State{fabric.Suspect, fabric.Gone} {
		for _, first := range []int{0, 1} {
			t.Run(fmt.Sprint(state, " side ", first), func(t *testing.T) {
				inBubble(t, 5, sim.Options{}, func(t *testing.T, r *rig) { deleteWhileAway(t, r, state, first) })
			})
		}
	}
}

// first is the side that hears first how the other side is.
func deleteWhileAway(t *testing.T, r *rig, state fabric.State, first int) {
	const each = 40
	heard := func(i int) string { return fmt.Sprint("heard", i) }
	unheard := func(i int) string { return fmt.Sprint("unheard", i) }
	sides := [][]fabric.Rank{{0, 1, 2}, {3, 4}}
	for i := range each {
		r.shelf[3].put(heard(i), 5, bytesOf(heard(i), 1), true)
	}
	r.settled()
	r.world.Partition(sides...)
	for i := range each {
		r.shelf[3].put(unheard(i), 5, bytesOf(unheard(i), 1), true)
	}
	know := func(state fabric.State) {
		for _, i := range []int{first, 1 - first} {
			for _, rank := range sides[i] {
				r.nodes[rank].SetMembers(r.members(state, sides[1-i]...)...)
			}
		}
	}
	know(state)
	time.Sleep(settle + 2*time.Second)
	for i := range each {
		for _, key := range []string{heard(i), unheard(i)} {
			_ = r.nodes[fabric.Rank(i%3)].Delete(t.Context(), "ns", key, 6) // homes that are away do not answer
		}
	}
	time.Sleep(5 * time.Minute)
	r.world.Heal()
	know(fabric.Alive)
	time.Sleep(settle + 5*time.Second)
	r.settled()
	for i := range each {
		for _, key := range []string{heard(i), unheard(i)} {
			if r.shelf[3].has(key) {
				t.Errorf("rank 3 still has %s", key)
			}
			for rank := range r.nodes {
				r.owners(rank, key)
			}
		}
	}
	time.Sleep(deletedFor)
	for rank, n := range r.nodes {
		// Rank 3 may have withdrawn what was deleted before it had heard of the homes of the other side.
		if left := n.Stats().Entries; left != 0 && first == 1 {
			t.Errorf("%v remembers %d names", rank, left)
		}
	}
}
