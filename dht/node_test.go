package dht

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/sim"
)

func TestLocateAsksFewHomesOnce(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		var keys []string
		for i := range 300 {
			key := fmt.Sprint(i)
			keys = append(keys, key)
			r.shelf[1+fabric.Rank(i%3)].put(key, 1, bytesOf(key, 1), false)
		}
		r.settled()
		before := r.messages(0)
		found := r.nodes[0].Locate(t.Context(), "ns", keys)
		// Each key has two homes, so two of the three other ranks know all that this one does not.
		if sent := r.messages(0) - before; sent != 2 {
			t.Errorf("%d messages for %d keys of 3 other homes, of which 2 are enough", sent, len(keys))
		}
		for i, copies := range found {
			if len(copies) != 1 || copies[0].Owner != 1+fabric.Rank(i%3) || copies[0].Name.Key != keys[i] || copies[0].Name.Namespace != "ns" {
				t.Fatalf("%q: %+v", keys[i], copies)
			}
			dst := make([]byte, copies[0].Info.Size)
			if err := readOne(t, r.nodes[0], copies, dst); err != nil || !bytes.Equal(dst, bytesOf(keys[i], 1)) {
				t.Fatalf("read %q: %q, %v", keys[i], dst, err)
			}
		}
		// Its own copies are nothing new to a rank.
		if own := r.nodes[1].Locate(t.Context(), "ns", keys[:1])[0]; own != nil {
			t.Errorf("a rank is told of its own copy: %+v", own)
		}
	})
}

// A home looks into its own directory and asks nobody, whichever home it is; while the
// ranks change, it asks the other one for what it does not have.
func TestAHomeAsksItself(t *testing.T) {
	inBubble(t, 3, sim.Options{}, func(t *testing.T, r *rig) {
		for _, homes := range [][2]fabric.Rank{{0, 1}, {1, 0}} {
			key := r.homed(homes[0], homes[1])
			r.shelf[2].put(key, 1, bytesOf(key, 1), false)
			r.settled()
			before := r.messages(0)
			copies := r.locate(0, key)
			sent := r.messages(0) - before
			if len(copies) != 1 || sent != 0 {
				t.Errorf("homes %v: %d messages, found %+v", homes, sent, copies)
			}
			n := r.nodes[0]
			n.dir.Clear("ns", true, math.MaxUint64)
			v := *n.view.Load()
			v.former, v.until = v.ring, time.Now().Add(time.Second)
			n.view.Store(&v)
			if copies := r.locate(0, key); len(copies) != 1 {
				t.Errorf("homes %v, which have changed: found %+v", homes, copies)
			}
		}
	})
}

func TestLocateManyKeysOfOneHome(t *testing.T) {
	inBubble(t, 3, sim.Options{}, func(t *testing.T, r *rig) {
		var keys []string
		for i := 0; len(keys) < 2*locateKeys+1; i++ {
			if key := fmt.Sprint(i); slices.Equal(r.nodes[0].view.Load().homes("ns", key), []fabric.Rank{1, 2}) {
				keys = append(keys, key)
				r.shelf[1].put(key, 1, bytesOf(key, 1), false)
			}
		}
		r.settled()
		before := r.messages(0)
		found := r.nodes[0].Locate(t.Context(), "ns", keys)
		if sent := r.messages(0) - before; sent != 3 || slices.ContainsFunc(found, func(c []directory.Statement) bool { return c == nil }) {
			t.Errorf("%d messages for %d keys, want 3; found %d", sent, len(keys), len(found))
		}
	})
}

func TestReplicaAnswersForThePrimary(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		key, other := r.homed(1, 2), r.homed(1, 3)
		r.shelf[3].put(key, 1, bytesOf(key, 1), false)
		r.shelf[2].put(other, 1, bytesOf(other, 1), false)
		r.settled()
		r.world.Kill(1)
		if d := took(func() { r.owners(0, key, 3) }); d != callDeadline {
			t.Errorf("with a silent primary a look-up took %v, want %v", d, callDeadline)
		}
		r.nodes[0].SetMembers(r.members(fabric.Suspect, 1)...)
		if d := took(func() { r.owners(0, key, 3) }); d != 0 {
			t.Errorf("with a suspect primary a look-up took %v", d)
		}
		r.world.Kill(2)
		r.world.Kill(3)
		if d := took(func() { r.owners(0, key) }); d != callDeadline {
			t.Errorf("with a suspect and a silent home a look-up took %v, want %v", d, callDeadline)
		}
		if d := took(func() { r.owners(0, other) }); d != callDeadline {
			t.Errorf("with a suspect and a silent home a look-up took %v, want %v", d, callDeadline)
		}
	})
}

func TestSuspectsArePingedAndNotWaitedFor(t *testing.T) {
	inBubble(t, 3, sim.Options{}, func(t *testing.T, r *rig) {
		key := r.homed(1, 2)
		r.nodes[0].SetMembers(r.members(fabric.Suspect, 1, 2)...)
		before := r.messages(0)
		if d := took(func() {
			for range 50 {
				r.owners(0, key)
			}
		}); d != 0 {
			t.Errorf("look-ups at suspects took %v", d)
		}
		synctest.Wait()
		if pings := r.messages(0) - before; pings != 2 {
			t.Errorf("%d messages to two suspects, want a ping each", pings)
		}
		time.Sleep(callDeadline)
		r.owners(0, key)
		synctest.Wait()
		if pings := r.messages(0) - before; pings != 4 {
			t.Errorf("%d messages after one more deadline, want 4", pings)
		}
	})
}

func TestNegativeAnswersAreRememberedBriefly(t *testing.T) {
	inBubble(t, 2, sim.Options{}, func(t *testing.T, r *rig) {
		key := r.homed(1, 0)
		r.owners(0, key)
		before := r.messages(0)
		r.owners(0, key)
		if r.messages(0) != before || r.nodes[0].Stats().Negative != 1 {
			t.Error("what nobody had a moment ago is asked for again")
		}
		r.shelf[1].put(key, 1, bytesOf(key, 1), false)
		time.Sleep(20 * time.Millisecond)
		r.owners(0, key, 1)
	})
}

func TestNegativeTimes(t *testing.T) {
	const d = 20 * time.Millisecond
	at := time.Unix(1000, 0)
	for step := range 40 { // whatever the moments at which the sets turn
		g := newNegative(d)
		g.has("ns", "other", at)
		added := at.Add(time.Duration(step) * time.Millisecond)
		g.add("ns", "k", added)
		if !g.has("ns", "k", added.Add(d/2-1)) {
			t.Errorf("step %d: forgotten before %v", step, d/2)
		}
		g.has("ns", "other", added.Add(9*d/10))
		if g.has("ns", "k", added.Add(d)) {
			t.Errorf("step %d: remembered after %v", step, d)
		}
		if g.has("other", "k", added) {
			t.Error("namespaces are mixed up")
		}
	}
}

func TestAnnouncementsTravelTogether(t *testing.T) {
	inBubble(t, 2, sim.Options{MinDelay: time.Millisecond, MaxDelay: time.Millisecond}, func(t *testing.T, r *rig) {
		before := r.messages(0)
		for i := range 5000 {
			for range 3 { // only the last state of a name is of interest
				r.shelf[0].put(fmt.Sprint(i%2500), 1, bytesOf(fmt.Sprint(i), 1), false)
			}
		}
		r.settled()
		if n := r.nodes[1].Stats().Entries; n != 2500 {
			t.Errorf("%d entries, want 2500", n)
		}
		if sent := r.messages(0) - before; sent > 10 {
			t.Errorf("%d messages for 2500 names of about 200 bytes", sent)
		}
	})
}

func TestAnnouncementsSurviveLoss(t *testing.T) {
	inBubble(t, 4, sim.Options{Seed: 7, Loss: 0.1, MaxDelay: time.Millisecond}, func(t *testing.T, r *rig) {
		for i := range 400 {
			key := fmt.Sprint(i)
			r.shelf[fabric.Rank(i%4)].put(key, 1, bytesOf(key, 1), false)
			if i%50 == 0 {
				time.Sleep(5 * time.Millisecond)
			}
		}
		r.settled()
		for i := range 400 {
			for rank := range r.nodes {
				if rank == fabric.Rank(i%4) {
					continue
				}
				// A look-up, at a home and its replica, may be lost itself.
				d := took(func() {
					for try := 0; r.locate(rank, fmt.Sprint(i)) == nil; try++ {
						if try == 20 {
							t.Fatalf("%v does not know of %d", rank, i)
						}
						time.Sleep(20 * time.Millisecond)
					}
				})
				if d > 21*(2*callDeadline+20*time.Millisecond) {
					t.Fatalf("look-ups took %v", d)
				}
			}
		}
	})
}

func TestReadFollowsABlockThatMoved(t *testing.T) {
	inBubble(t, 3, sim.Options{}, func(t *testing.T, r *rig) {
		key := r.homed(1, 2)
		r.shelf[2].put(key, 1, bytesOf(key, 1), false)
		r.settled()
		copies := r.locate(0, key)
		dst := make([]byte, copies[0].Info.Size)

		r.shelf[2].mu.Lock()
		clear(r.shelf[2].bytes)
		r.shelf[2].mu.Unlock()
		r.shelf[2].keep(key, 1, bytesOf(key, 1), false) // elsewhere, and the homes do not know
		if err := readOne(t, r.nodes[0], copies, dst); err != nil || !bytes.Equal(dst, bytesOf(key, 1)) {
			t.Errorf("moved: %q, %v", dst, err)
		}

		for moves, ok := range map[int]bool{maxMoves - 1: true, maxMoves + 1: false} {
			r.shelf[2].mu.Lock()
			r.shelf[2].restless = moves
			r.shelf[2].mu.Unlock()
			clear(dst)
			err := readOne(t, r.nodes[0], copies, dst)
			if ok && (err != nil || !bytes.Equal(dst, bytesOf(key, 1))) || !ok && !errors.Is(err, ErrGone) {
				t.Errorf("moved %d times on the way: %q, %v", moves, dst, err)
			}
		}

		r.shelf[2].mu.Lock()
		r.shelf[2].restless = 0
		clear(r.shelf[2].bytes)
		clear(r.shelf[2].names)
		r.shelf[2].mu.Unlock()
		if err := readOne(t, r.nodes[0], copies, dst); !errors.Is(err, ErrGone) {
			t.Errorf("gone: %v", err)
		}
		r.settled()
		r.owners(0, key) // refuted
		if n := r.nodes[1].Stats().Entries + r.nodes[2].Stats().Entries; n != 0 {
			t.Errorf("%d entries are left", n)
		}

		// A name that has other bytes now is not taken for the old ones.
		r.shelf[2].put(key, 2, bytesOf(key, 2), false)
		if err := readOne(t, r.nodes[0], copies, dst); !errors.Is(err, ErrGone) {
			t.Errorf("replaced: %v", err)
		}
		r.settled()
		r.owners(0, key, 2) // the refutation of the old is none of the new
	})
}

func TestReadTriesTheNextOwner(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		key := r.homed(3, 0)
		for _, rank := range []fabric.Rank{1, 2} {
			r.shelf[rank].put(key, 1, bytesOf(key, 1), false)
		}
		r.settled()
		copies := r.locate(0, key)
		dst := make([]byte, copies[0].Info.Size)
		r.world.Kill(copies[0].Owner)
		d := took(func() {
			if err := readOne(t, r.nodes[0], copies, dst); err != nil {
				t.Error(err)
			}
		})
		if d != readDeadline/2 {
			t.Errorf("a silent owner held a read up for %v, want half of %v", d, readDeadline)
		}
		r.world.Kill(copies[1].Owner)
		d = took(func() {
			if err := readOne(t, r.nodes[0], copies, dst); err == nil {
				t.Error("a read from killed ranks succeeded")
			}
		})
		if d != readDeadline {
			t.Errorf("a read of silent owners took %v, want %v", d, readDeadline)
		}
	})
}

func TestRefuteASegment(t *testing.T) {
	inBubble(t, 3, sim.Options{}, func(t *testing.T, r *rig) {
		key := r.homed(1, 2)
		r.shelf[2].put(key, 1, bytesOf(key, 1), true)
		r.settled()
		copies := r.locate(0, key)
		wrong := copies[0]
		wrong.Segment = nil
		r.nodes[0].Invalidate(wrong)
		r.settled()
		if left := r.locate(0, key); len(left) != 1 || left[0].Segment != nil || left[0].Memory == nil {
			t.Errorf("%+v", left)
		}
	})
}

func TestDeleteReachesOwners(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		key := r.homed(1, 2)
		for rank := range r.shelf {
			r.shelf[rank].put(key, 5, bytesOf(key, 1), false)
		}
		r.settled()
		if err := r.nodes[0].Delete(t.Context(), "ns", key, 5); err != nil {
			t.Fatal(err)
		}
		for rank, s := range r.shelf {
			if s.has(key) {
				t.Errorf("%v still has a deleted name when Delete returns", rank)
			}
		}
		r.shelf[3].put(key, 4, bytesOf(key, 0), false) // a put from before, told late
		r.settled()
		r.owners(0, key)
		if r.shelf[3].has(key) {
			t.Error("the speaker of an older put is not told that it was deleted")
		}
		r.shelf[3].put(key, 6, bytesOf(key, 2), false)
		r.settled()
		r.owners(0, key, 3)
	})
}

func TestDeleteReachesAnOwnerThatWasAway(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		key := r.homed(1, 2)
		r.shelf[3].put(key, 5, bytesOf(key, 1), false)
		r.settled()
		r.world.Partition([]fabric.Rank{0, 1, 2}, []fabric.Rank{3})
		d := took(func() {
			if err := r.nodes[0].Delete(t.Context(), "ns", key, 5); err != nil {
				t.Error(err)
			}
		})
		if d > callDeadline {
			t.Errorf("Delete took %v", d)
		}
		time.Sleep(3 * time.Second)
		r.owners(0, key)
		r.world.Heal()
		time.Sleep(2 * retryMost)
		if r.shelf[3].has(key) {
			t.Error("the owner did not hear of it")
		}
		r.world.Kill(1)
		if err := r.nodes[0].Delete(t.Context(), "ns", key, 9); err == nil {
			t.Error("a home that could not be told is not in the error")
		}
	})
}

func TestOverwriteReachesOtherOwners(t *testing.T) {
	inBubble(t, 4, sim.Options{Seed: 4, Loss: 0.1}, func(t *testing.T, r *rig) {
		for i := range 50 {
			key := fmt.Sprint(i)
			r.shelf[0].put(key, 1, bytesOf(key, 1), false)
			r.shelf[1].put(key, 1, bytesOf(key, 1), false)
			r.shelf[2].put(key, 2, bytesOf(key, 2), false)
		}
		r.settled()
		time.Sleep(2 * time.Second)
		for i := range 50 {
			if key := fmt.Sprint(i); r.shelf[0].has(key) || r.shelf[1].has(key) || !r.shelf[2].has(key) {
				t.Errorf("%s: %v %v %v", key, r.shelf[0].has(key), r.shelf[1].has(key), r.shelf[2].has(key))
			}
		}
	})
}

// A put that ends before its homes hear of it, and whose withdrawal is stated again by who
// does not know what it was, hides a copy of what it replaced that is stated late.
func TestWhatAnEndHidIsStatedLate(t *testing.T) {
	inBubble(t, 5, sim.Options{Seed: 4, MaxDelay: time.Millisecond}, func(t *testing.T, r *rig) {
		ends := time.Now()
		for i := range 50 {
			key := fmt.Sprint(i)
			r.shelf[0].keep(key, 1, bytesOf(key, 1), true)
			r.shelf[2].put(key, 2, bytesOf(key, 2), false)
			r.shelf[2].mu.Lock()
			delete(r.shelf[2].names, key)
			r.shelf[2].mu.Unlock()
			gone := r.shelf[2].State("ns", key)
			gone.Name.Seq, gone.Name.Expires = 2, ends
			r.nodes[2].Publish(gone)
			r.nodes[2].Publish(r.shelf[2].State("ns", key))
		}
		r.settled()
		for i := range 50 {
			r.nodes[0].Publish(r.shelf[0].State("ns", fmt.Sprint(i)))
		}
		r.settled()
		time.Sleep(2 * time.Second)
		for i := range 50 {
			key := fmt.Sprint(i)
			if r.shelf[0].has(key) || r.locate(1, key) != nil {
				t.Errorf("%s is back", key)
			}
		}
	})
}

func TestClear(t *testing.T) {
	inBubble(t, 3, sim.Options{}, func(t *testing.T, r *rig) {
		for i := range 60 {
			r.shelf[fabric.Rank(i%3)].put(fmt.Sprint(i), 1, bytesOf("x", i), true)
		}
		r.settled()
		if err := r.nodes[1].Clear(t.Context(), "ns", false, 2); err != nil {
			t.Fatal(err)
		}
		for rank, n := range r.nodes {
			if n.Stats().Entries != 0 || len(r.shelf[rank].names) != 0 {
				t.Errorf("%v: %d entries, %d names", rank, n.Stats().Entries, len(r.shelf[rank].names))
			}
		}
	})
}

// Touches of requests that follow each other travel together.
func TestTouchReachesTheOwner(t *testing.T) {
	inBubble(t, 2, sim.Options{}, func(t *testing.T, r *rig) {
		for range 2 {
			before := r.messages(0)
			r.nodes[0].Touch(1, "ns", []string{"a", "b"})
			r.nodes[0].Touch(1, "ns", []string{"c"})
			time.Sleep(2 * touchDelay)
			r.shelf[1].mu.Lock()
			if !slices.Equal(r.shelf[1].touched, []string{"a", "b", "c"}) {
				t.Errorf("%q", r.shelf[1].touched)
			}
			r.shelf[1].touched = nil
			r.shelf[1].mu.Unlock()
			if sent := r.messages(0) - before; sent != 1 {
				t.Errorf("%d messages", sent)
			}
			time.Sleep(2 * touchDelay)
		}
	})
}

func TestSuspicionFollowsWhatPeersDo(t *testing.T) {
	inBubble(t, 3, sim.Options{}, func(t *testing.T, r *rig) {
		var answered, unanswered []fabric.Rank
		n := r.nodes[0]
		n.o.Answered = func(p fabric.Rank) { answered = append(answered, p) }
		n.o.Unanswered = func(p fabric.Rank, _ error) { unanswered = append(unanswered, p) }
		key := r.homed(1, 2)
		r.locate(0, key)
		if len(answered) != 1 || len(unanswered) != 0 {
			t.Errorf("after an answer: %v, %v", answered, unanswered)
		}
		r.world.Kill(1)
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), callDeadline/2)
		defer cancel()
		n.Locate(ctx, "ns", []string{key})
		if len(unanswered) != 0 {
			t.Error("a deadline that the caller set is held against the peer")
		}
		r.locate(0, key)
		if len(unanswered) != 1 {
			t.Errorf("after no answer: %v", unanswered)
		}
	})
}

func TestRanksReport(t *testing.T) {
	inBubble(t, 3, sim.Options{}, func(t *testing.T, r *rig) {
		r.world.Kill(2)
		all := r.nodes[0].Ranks(t.Context())
		if len(all) != 3 || !strings.HasPrefix(string(all[0].Report), `{"rank":true,"peers":{`) || !strings.HasPrefix(string(all[1].Report), `{"rank":true,"peers":{`) ||
			all[2].Report != nil || all[2].Error == "" {
			t.Errorf("%+v", all)
		}
	})
}

func TestClosedNode(t *testing.T) {
	inBubble(t, 3, sim.Options{}, func(t *testing.T, r *rig) {
		key := r.homed(1, 2)
		r.shelf[2].put(key, 1, bytesOf(key, 1), false)
		r.settled()
		copies := r.locate(0, key)
		n := r.nodes[0]
		if err := errors.Join(n.Close(), n.Close()); err != nil {
			t.Fatal(err)
		}
		d := took(func() {
			if found := n.Locate(t.Context(), "ns", []string{"other"}); found[0] != nil {
				t.Error("a closed node finds something")
			}
			if err := readOne(t, n, copies, make([]byte, copies[0].Info.Size)); !errors.Is(err, fabric.ErrClosed) {
				t.Errorf("Read: %v", err)
			}
			if n.Delete(t.Context(), "ns", key, 1) == nil {
				t.Error("Delete on a closed node succeeds")
			}
			n.Publish(copies[0])
			n.Invalidate(copies[0])
			n.Touch(2, "ns", []string{key})
			n.SetMembers(r.members(fabric.Gone, 2)...)
			if !n.Settled(t.Context()) {
				t.Error("a closed node has something to tell")
			}
		})
		if d != 0 {
			t.Errorf("a closed node took %v", d)
		}
	})
}

// TestExpireAsksWhoHasTheName: an owner that cannot set when a name ends, since it lost it or
// does not get at it, is not taken at its word.
func TestExpireAsksWhoHasTheName(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		key := r.homed(2, 3)
		data := bytesOf(key, 1)
		for _, owner := range []fabric.Rank{0, 1} {
			r.shelf[owner].put(key, 1, data, false)
			r.settled()
		}
		r.owners(2, key, 0, 1)
		lost := func(owner fabric.Rank) {
			s := r.shelf[owner]
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.names, key)
		}
		lost(0)
		at := time.Now().Add(time.Hour)
		if ok, err := r.nodes[2].Expire(t.Context(), "ns", key, at); !ok || err != nil {
			t.Errorf("%v, %v: another owner has the name", ok, err)
		}
		if got := r.shelf[1].State("ns", key).Name.Expires; !got.Equal(at) {
			t.Errorf("it ends %v, not %v", got, at)
		}
		lost(1)
		if ok, err := r.nodes[2].Expire(t.Context(), "ns", key, at); !ok || err == nil {
			t.Errorf("%v, %v: no owner has the name", ok, err)
		}
	})
}
