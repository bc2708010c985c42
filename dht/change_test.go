package dht

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/sim"
	"cascadekv/dht/ring"
)

// names puts so many names on each rank, every second with a segment.
func (r *rig) names(each int) {
	for _, rank := range r.ranks() {
		for i := range each {
			key := fmt.Sprintf("%d of %d", i, rank)
			r.shelf[rank].put(key, 1, bytesOf(key, 1), i%2 == 0)
		}
	}
}

// wantAll checks that all ranks find what is on the shelves of all others, in
// time.
func (r *rig) wantAll(when string) {
	r.t.Helper()
	for _, owner := range r.ranks() {
		var keys []string
		for k := range r.shelf[owner].names {
			keys = append(keys, k)
		}
		for _, rank := range r.ranks() {
			if rank == owner {
				continue
			}
			start := time.Now()
			found := r.nodes[rank].Locate(context.Background(), "ns", keys)
			if d := time.Since(start); d > 3*callDeadline {
				r.t.Errorf("%s: a look-up on %v took %v", when, rank, d)
			}
			missing := 0
			for _, copies := range found {
				if len(copies) == 0 || copies[0].Owner != owner || copies[0].Memory == nil {
					missing++
				}
			}
			if missing > 0 {
				r.t.Errorf("%s: %v does not find %d of %d names of %v", when, rank, missing, len(keys), owner)
			}
		}
	}
}

// entries is the number of entries on all homes.
func (r *rig) entries() (n int) {
	for _, node := range r.nodes {
		n += node.Stats().Entries
	}
	return n
}

func TestARankJoins(t *testing.T) {
	inBubble(t, 4, sim.Options{MinDelay: time.Millisecond, MaxDelay: 5 * time.Millisecond}, func(t *testing.T, r *rig) {
		r.names(100)
		r.settled()
		if n := r.entries(); n != 800 {
			t.Fatalf("%d entries of 400 names", n)
		}
		r.start(4, 1)
		r.tell(r.members(fabric.Alive, r.ranks()...)...)
		r.wantAll("at once") // new homes know nothing yet: the former ones do
		r.settled()
		r.wantAll("before it is settled")
		if n := r.nodes[4].Stats().Entries; n == 0 || n > 260 {
			t.Errorf("the new rank has %d of 800 entries", n)
		}
		time.Sleep(settle + 2*time.Second)
		r.wantAll("settled")
		if n := r.entries(); n != 800 {
			t.Errorf("%d entries when it is settled, want 800", n)
		}
		for rank, n := range r.nodes {
			if s := n.Stats(); s.Settling || s.Ranks != 5 || s.RingDigest != r.nodes[0].Stats().RingDigest {
				t.Errorf("%v: %+v", rank, s)
			}
		}
	})
}

func TestRanksDie(t *testing.T) {
	inBubble(t, 5, sim.Options{}, func(t *testing.T, r *rig) {
		r.names(100)
		r.settled()
		segments := func(owner fabric.Rank, when string) {
			t.Helper()
			for _, rank := range r.ranks() {
				for i := range 100 {
					copies := r.locate(rank, fmt.Sprintf("%d of %d", i, owner))
					if i%2 == 1 && copies != nil {
						t.Fatalf("%s: %v takes a dead rank's memory for there: %+v", when, rank, copies)
					} else if i%2 == 0 && (len(copies) != 1 || copies[0].Memory != nil || copies[0].Segment == nil) {
						t.Fatalf("%s: %v does not know of segment %d of %v: %+v", when, rank, i, owner, copies)
					}
				}
			}
		}
		r.die(4)
		r.wantAll("at once")
		segments(4, "at once")
		time.Sleep(settle + 2*time.Second)
		r.wantAll("settled")
		segments(4, "settled")
		// What the dead left is handed on from home to home.
		r.die(3)
		time.Sleep(settle + 2*time.Second)
		r.die(2)
		time.Sleep(settle + 2*time.Second)
		r.wantAll("two are left")
		for owner := fabric.Rank(2); owner < 5; owner++ {
			segments(owner, "two are left")
		}
	})
}

func TestARankStartsAgain(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		r.names(100)
		r.settled()
		for _, noticed := range []bool{false, true} {
			incarnation := r.nodes[2].Incarnation() + 1
			r.die2(2, noticed)
			r.start(2, incarnation)
			all := r.members(fabric.Alive, r.ranks()...)
			r.tell(all...)
			r.settled()
			if n := r.nodes[2].Stats().Entries; n < 100 {
				t.Errorf("noticed %v: the new process has %d entries", noticed, n)
			}
			r.wantAll("again")
			for i := 1; i < 100; i += 2 {
				r.owners(0, fmt.Sprintf("%d of 2", i))
			}
			// What the old process says late is of no interest.
			r.tell(Member{Rank: 2, Incarnation: incarnation - 1, State: fabric.Gone})
			r.wantAll("after news of the old process")
			time.Sleep(settle + 2*time.Second)
			r.wantAll("settled")
		}
	})
}

// die2 kills a rank, and others notice or not.
func (r *rig) die2(rank fabric.Rank, noticed bool) {
	if noticed {
		r.die(rank)
		return
	}
	r.world.Kill(rank)
	n := r.nodes[rank]
	delete(r.nodes, rank)
	delete(r.shelf, rank)
	if err := n.Close(); err != nil {
		r.t.Error(err)
	}
}

// TestOneSideTakesARankForGone: the rank itself never learns that others took
// it for dead and forgot what it had said.
func TestOneSideTakesARankForGone(t *testing.T) {
	inBubble(t, 4, sim.Options{Seed: 3, Loss: 0.1}, func(t *testing.T, r *rig) {
		r.names(100)
		r.settled()
		time.Sleep(3 * time.Second)
		for _, gone := range []fabric.Rank{1, 2} {
			r.nodes[0].SetMembers(r.members(fabric.Gone, gone)...)
			time.Sleep(settle + 2*time.Second)
			r.nodes[0].SetMembers(r.members(fabric.Alive, gone)...)
		}
		time.Sleep(settle + 2*time.Second)
		r.settled()
		missing := 0
		for i := range 100 {
			for owner := fabric.Rank(1); owner < 4; owner++ {
				key := fmt.Sprintf("%d of %d", i, owner)
				if _, ok := r.nodes[0].dir.Lookup("ns", key, time.Now()); !ok && slices.Contains(r.nodes[0].view.Load().homes("ns", key), 0) {
					missing++
				}
			}
		}
		if missing > 0 {
			t.Errorf("a home lacks %d names", missing)
		}
	})
}

// TestPartitionHeals: two halves of a job take each other for gone, go on, and
// are one again.
func TestPartitionHeals(t *testing.T) {
	inBubble(t, 4, sim.Options{Seed: 5, MinDelay: time.Millisecond, MaxDelay: 3 * time.Millisecond}, func(t *testing.T, r *rig) {
		r.names(100)
		r.shelf[0].put("replaced", 1, bytesOf("replaced", 1), false)
		r.shelf[3].put("replaced", 1, bytesOf("replaced", 1), false)
		r.settled()
		halves := [][]fabric.Rank{{0, 1}, {2, 3}}
		r.world.Partition(halves...)
		for i, half := range halves {
			for _, rank := range half {
				if d := took(func() { r.nodes[rank].Locate(context.Background(), "ns", []string{"0 of 0", "0 of 3"}) }); d > 3*callDeadline {
					t.Errorf("a look-up took %v", d)
				}
				go func() {
					time.Sleep(time.Duration(rank) * 500 * time.Millisecond) // they do not notice at once
					r.nodes[rank].SetMembers(r.members(fabric.Gone, halves[1-i]...)...)
				}()
			}
		}
		time.Sleep(5 * time.Second)
		// Life goes on in both.
		for rank, s := range r.shelf {
			key := fmt.Sprintf("meanwhile on %d", rank)
			s.put(key, 2, bytesOf(key, 2), false)
		}
		r.shelf[0].put("replaced", 2, bytesOf("replaced", 2), false)
		time.Sleep(time.Second)
		r.owners(1, "meanwhile on 0", 0)
		r.owners(1, "meanwhile on 2")
		r.owners(2, "replaced", 3)
		time.Sleep(4 * time.Second)
		r.world.Heal()
		for i, half := range halves {
			for _, rank := range half {
				go func() {
					time.Sleep(time.Duration(3-rank) * 700 * time.Millisecond)
					r.nodes[rank].SetMembers(r.members(fabric.Alive, halves[1-i]...)...)
				}()
			}
		}
		time.Sleep(3 * time.Second)
		r.settled()
		if r.shelf[3].has("replaced") {
			t.Error("the half that missed an overwrite still has the old bytes")
		}
		r.wantAll("healed")
		time.Sleep(settle + 2*time.Second)
		r.wantAll("settled")
		if n := r.entries(); n != 2*405 {
			t.Errorf("%d entries of 405 names", n)
		}
	})
}

// TestDeleteWhileSettling: former homes, which are still asked, bury too.
func TestDeleteWhileSettling(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		r.names(50)
		r.settled()
		r.start(4, 1)
		r.tell(r.members(fabric.Alive, r.ranks()...)...)
		r.settled()
		for i := range 50 {
			key := fmt.Sprintf("%d of 0", i)
			if err := r.nodes[1].Delete(t.Context(), "ns", key, 1); err != nil {
				t.Fatal(err)
			}
			for _, rank := range r.ranks() {
				r.owners(rank, key)
			}
		}
	})
}

func TestMembersComeAndGoTogether(t *testing.T) {
	inBubble(t, 2, sim.Options{}, func(t *testing.T, r *rig) {
		n := r.nodes[0]
		epoch := n.view.Load().ring.Epoch()
		same := n.view.Load().ring
		n.SetMembers(r.members(fabric.Suspect, 1)...)
		n.SetMembers(r.members(fabric.Alive, 1)...)
		n.SetMembers(Member{Rank: 9, Incarnation: 4, State: fabric.Gone}) // never seen alive
		n.SetMembers(Member{Rank: 0, Incarnation: 9, State: fabric.Gone}) // itself
		if n.view.Load().ring != same || n.view.Load().ring.Epoch() != epoch {
			t.Error("the ring moved although its ranks are the same")
		}
		if _, known := n.view.Load().members[9]; !known || n.view.Load().state(0) != fabric.Alive {
			t.Error("members are wrong")
		}
		n.SetMembers(Member{Rank: 2, Incarnation: 1}, Member{Rank: 3, Incarnation: 1}, Member{Rank: 1, Incarnation: 1, State: fabric.Gone})
		if got := n.view.Load().ring.Ranks(); !slices.Equal(got, []fabric.Rank{0, 2, 3}) {
			t.Errorf("ring of %v", got)
		}
	})
}

// TestWhoKnowsFewStatesToHomes: a rank that starts and knows one other takes that one for
// a home of all names. It is none of most, and would not learn what becomes of them.
func TestWhoKnowsFewStatesToHomes(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		var keys []string
		without, err := sharedRing(nil, []fabric.Rank{0, 2, 3})
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; len(keys) < 4; i++ {
			key := fmt.Sprintf("key %d", i)
			p := without.Partition("ns", key)
			if v := r.nodes[0].view.Load(); v.ring.IsHome(1, p) && !v.ring.IsHome(0, p) && without.IsHome(0, p) {
				keys = append(keys, key)
			}
		}
		r.die2(2, false)
		r.start(2, 2)
		for rank, n := range r.nodes {
			if rank != 2 {
				n.SetMembers(r.members(fabric.Alive, 2)...)
			}
		}
		r.nodes[2].SetMembers(r.members(fabric.Alive, 0)...)
		for _, key := range keys {
			r.shelf[2].put(key, 1, bytesOf(key, 1), true)
		}
		time.Sleep(time.Second)
		if n := r.nodes[0].Stats().Entries; n != 0 {
			t.Errorf("a rank keeps %d entries of names that it is no home of", n)
		}
		r.nodes[2].SetMembers(r.members(fabric.Alive, 1, 3)...)
		r.settled()
		for _, key := range keys {
			r.owners(0, key, 2) // its homes know
		}
		time.Sleep(settle + 2*time.Second)
		for i, key := range keys {
			if i%2 == 0 {
				r.shelf[3].put(key, 2, bytesOf(key, 2), false)
			}
		}
		r.settled()
		for _, key := range keys {
			if err := r.nodes[3].Delete(t.Context(), "ns", key, 3); err != nil {
				t.Error(err)
			}
		}
		r.settled()
		r.die(1)
		for _, when := range []string{"at once", "settled"} {
			for rank := range r.nodes {
				for _, key := range keys {
					if got := r.locate(rank, key); got != nil {
						t.Errorf("%s: %v finds %q, which was deleted: %+v", when, rank, key, got)
					}
				}
			}
			time.Sleep(settle + 2*time.Second)
		}
	})
}

// TestFormerHomesAreTold: as long as they are asked they learn what changes; and they may
// be homes once more, with what they had.
func TestFormerHomesAreTold(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		var keys []string
		for i := 0; len(keys) < 20; i++ {
			key := fmt.Sprintf("key %d", i)
			if homes := r.nodes[0].view.Load().homes("ns", key); slices.Contains(homes, 1) && !slices.Contains(homes, 2) {
				keys = append(keys, key)
			}
		}
		for _, key := range keys {
			r.shelf[2].put(key, 1, bytesOf(key, 1), true)
		}
		r.settled()
		r.start(4, 1) // some of their homes are others now
		r.tell(r.members(fabric.Alive, r.ranks()...)...)
		r.settled()
		for _, key := range keys {
			r.shelf[3].put(key, 2, bytesOf(key, 2), false)
		}
		r.settled()
		for _, key := range keys { // evicted: nobody has it
			s := r.shelf[3]
			s.mu.Lock()
			delete(s.names, key)
			s.mu.Unlock()
			s.node.Publish(s.State("ns", key))
		}
		r.settled()
		for _, when := range []string{"while they are asked", "once more"} {
			for rank := range r.nodes {
				for _, key := range keys {
					if got := r.locate(rank, key); got != nil {
						t.Errorf("%s: %v finds a value of %q that was replaced: %+v", when, rank, key, got)
					}
				}
			}
			if r.nodes[4] != nil {
				r.die(4)
			}
		}
	})
}

// TestAHomeOnceMore: a rank that is a home, then not even asked, and a home once more before
// all has settled, has not heard of what happened meanwhile.
func TestAHomeOnceMore(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		var rings []*ring.Ring
		for _, ranks := range [][]fabric.Rank{{0, 1, 2, 3}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5, 6}, {0, 1, 2, 3}} {
			one, err := sharedRing(nil, ranks)
			if err != nil {
				t.Fatal(err)
			}
			rings = append(rings, one)
		}
		var keys []string
		for i := 0; len(keys) < 5; i++ {
			key := fmt.Sprintf("key %d", i)
			p := rings[0].Partition("ns", key)
			if rings[0].IsHome(1, p) && !rings[1].IsHome(1, p) && !rings[2].IsHome(1, p) {
				keys = append(keys, key)
			}
		}
		for _, key := range keys {
			r.shelf[2].put(key, 1, bytesOf(key, 1), true)
		}
		r.settled()
		for _, more := range [][]fabric.Rank{{4, 5}, {6}} {
			for _, rank := range more {
				r.start(rank, 1)
			}
			r.tell(r.members(fabric.Alive, r.ranks()...)...)
			r.settled()
		}
		for _, key := range keys {
			s := r.shelf[3]
			s.put(key, 2, bytesOf(key, 2), false)
			r.settled()
			s.mu.Lock()
			delete(s.names, key) // evicted
			s.mu.Unlock()
			s.node.Publish(s.State("ns", key))
		}
		r.settled()
		for rank := fabric.Rank(4); rank < 7; rank++ {
			r.world.Kill(rank)
			if err := r.nodes[rank].Close(); err != nil {
				t.Error(err)
			}
			delete(r.nodes, rank)
			delete(r.shelf, rank)
		}
		r.tell(r.members(fabric.Gone, 4, 5, 6)...)
		for rank := range r.nodes {
			for _, key := range keys {
				if got := r.locate(rank, key); got != nil {
					t.Errorf("%v finds a value of %q that was replaced: %+v", rank, key, got)
				}
			}
		}
	})
}
