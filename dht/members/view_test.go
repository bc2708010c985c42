package members

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"cascadekv/dht/fabric"
)

func life(rank fabric.Rank, incarnation uint64) claim {
	return claim{meta{rank: rank, incarnation: incarnation, addr: fmt.Sprint("f", uint32(rank))}, fmt.Sprint("g", uint32(rank))}
}

// story runs a view by hand. Times are seconds.
type story struct {
	*testing.T
	view *view
}

func newStory(t *testing.T) story {
	return story{t, newView(life(0, 5).meta, "g0", 2, 10*time.Second)}
}

func at(seconds int) time.Time { return time.Unix(int64(seconds), 0) }

// expect compares events with "kind rank.incarnation state".
func (s story) expect(events []Event, want ...string) {
	s.Helper()
	var got []string
	for _, e := range events {
		state := [...]string{"alive", "suspect", "gone"}[e.Member.State]
		got = append(got, fmt.Sprintf("%v %d.%d %s", e.Kind, uint32(e.Member.Rank), e.Member.Incarnation, state))
		if held := s.view.list()[slices.IndexFunc(s.view.list(), func(m Member) bool { return m.Rank == e.Member.Rank })]; len(events) == 1 && held != e.Member {
			s.Errorf("the event has %+v, the list %+v", e.Member, held)
		}
	}
	if !slices.Equal(got, want) {
		s.Errorf("events %q, expected %q", got, want)
	}
}

func TestLifeAndDeath(t *testing.T) {
	s := newStory(t)
	s.expect(s.view.appear(life(1, 1)), "joined 1.1 alive")
	s.expect(s.view.appear(life(1, 1)))
	moved := life(1, 1)
	moved.addr = "elsewhere"
	s.expect(s.view.appear(moved), "updated 1.1 alive")
	s.expect(s.view.vanish(moved), "died 1.1 gone")
	s.expect(s.view.vanish(moved))
	s.expect(s.view.appear(life(1, 1)), "joined 1.1 alive")
	goes := life(1, 1)
	goes.leaving = true
	s.expect(s.view.appear(goes))
	s.expect(s.view.vanish(goes), "left 1.1 gone")
	s.expect(s.view.appear(life(1, 2)), "joined 1.2 alive")
	if m := s.view.list()[1]; m.Left || m.Gossip != "g1" {
		t.Errorf("restarted as %+v", m)
	}
}

func TestHighestIncarnationHolds(t *testing.T) {
	s := newStory(t)
	s.expect(s.view.appear(life(1, 2)), "joined 1.2 alive")
	s.expect(s.view.appear(life(1, 1))) // older: not told
	s.expect(s.view.vanish(life(1, 1)))
	s.expect(s.view.appear(life(1, 3)), "replaced 1.3 alive")
	s.expect(s.view.vanish(life(1, 2))) // of the one replaced
	s.expect(s.view.vanish(life(1, 3)), "died 1.3 gone")
	s.expect(s.view.appear(life(1, 2))) // never back
	// Two of one incarnation: every rank decides alike.
	twin := life(1, 3)
	twin.nonce = 1
	s.expect(s.view.appear(twin), "joined 1.3 alive")
	s.expect(s.view.appear(life(1, 3)))
	// Of this rank too.
	s.expect(s.view.appear(life(0, 4)))
	s.expect(s.view.appear(life(0, 6)), "replaced 0.6 alive")
}

func TestSuspicion(t *testing.T) {
	s := newStory(t)
	s.expect(s.view.fail(1, "", at(0))) // nobody
	s.view.appear(life(1, 1))
	s.view.appear(life(2, 1))
	s.expect(s.view.fail(1, "", at(0)))
	s.expect(s.view.answer(1))
	s.expect(s.view.fail(1, "", at(1)))
	s.expect(s.view.fail(1, "", at(2)), "suspected 1.1 suspect")
	s.expect(s.view.fail(1, "", at(5)))
	s.expect(s.view.appear(life(1, 1))) // gossip's word alone is not an answer
	if n := s.view.doubted(); n != 1 {
		t.Errorf("%d doubted", n)
	}
	s.expect(s.view.answer(1), "restored 1.1 alive")
	s.expect(s.view.answer(1))
	if n := s.view.doubted(); n != 0 {
		t.Errorf("%d doubted", n)
	}

	// Failures that are far apart do not add up.
	s.expect(s.view.fail(2, "", at(10)))
	s.expect(s.view.fail(2, "", at(20)))
	s.expect(s.view.fail(2, "", at(21)), "suspected 2.1 suspect")
	s.expect(s.view.vanish(life(2, 1)), "died 2.1 gone")
	s.expect(s.view.answer(2))
	s.expect(s.view.fail(2, "", at(22)))
	s.expect(s.view.expire(at(100)))
	s.expect(s.view.fail(0, "", at(22)))
	s.expect(s.view.fail(0, "", at(22))) // never itself
}

func TestSuspicionExpires(t *testing.T) {
	s := newStory(t)
	for rank := fabric.Rank(3); rank > 0; rank-- {
		s.view.appear(life(rank, 1))
		s.view.fail(rank, "", at(int(rank)))
		s.view.fail(rank, "", at(int(rank)))
	}
	if next, any := s.view.expiry(); !any || !next.Equal(at(11)) {
		t.Errorf("expiry at %v, %v", next, any)
	}
	s.expect(s.view.expire(at(10)))
	s.expect(s.view.expire(at(12)), "restored 1.1 alive", "restored 2.1 alive")
	s.expect(s.view.expire(at(12)))
	// A restart is trusted anew.
	s.expect(s.view.appear(life(3, 2)), "replaced 3.2 alive")
	if next, any := s.view.expiry(); any || s.view.doubted() != 0 {
		t.Errorf("expiry at %v, %d doubted", next, s.view.doubted())
	}
}

// TestRandomStories checks what holds whatever happens: incarnations never go
// back, and the events told give the same picture as the list.
func TestRandomStories(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		v := newView(life(0, 1).meta, "g0", 2, 10*time.Second)
		told := map[fabric.Rank]Member{0: v.list()[0]}
		for now := range 200 {
			rank := fabric.Rank(rng.IntN(4))
			c := life(rank, uint64(rng.IntN(4)))
			c.leaving = rng.IntN(4) == 0
			var events []Event
			switch rng.IntN(5) {
			case 0:
				events = v.appear(c)
			case 1:
				events = v.vanish(c)
			case 2:
				events = v.fail(rank, "", at(now))
			case 3:
				events = v.answer(rank)
			case 4:
				events = v.expire(at(now))
			}
			for _, e := range events {
				if e.Member.Incarnation < told[e.Member.Rank].Incarnation {
					t.Fatalf("seed %d: %v %+v after %+v", seed, e.Kind, e.Member, told[e.Member.Rank])
				}
				told[e.Member.Rank] = e.Member
			}
			for _, m := range v.list() {
				if told[m.Rank] != m {
					t.Fatalf("seed %d: told %+v, is %+v", seed, told[m.Rank], m)
				}
			}
		}
	}
}

func TestQueue(t *testing.T) {
	q := newQueue(0)
	const many = 3 * crowded
	for i := range many {
		q.put(Event{Member: Member{Rank: fabric.Rank(i%5 + 1), Incarnation: uint64(i)}})
		if i == 7 {
			q.put(Event{Kind: Replaced})
		}
	}
	q.put(Event{Kind: Joined}) // a later one of our own does not hide the first
	q.close()
	last, own, count := map[fabric.Rank]uint64{}, 0, 0
	var order uint64
	q.drain(func(events []Event) {
		for _, e := range events {
			count++
			if e.Member.Rank == 0 {
				own++
				continue
			}
			if e.Member.Incarnation < order {
				t.Errorf("%d after %d", e.Member.Incarnation, order)
			}
			order = e.Member.Incarnation
			last[e.Member.Rank] = order
		}
	})
	if own != 2 || count > 2*crowded {
		t.Errorf("%d of our own, %d events in all", own, count)
	}
	for i := many - 5; i < many; i++ {
		if rank := fabric.Rank(i%5 + 1); last[rank] != uint64(i) {
			t.Errorf("the last of %v is %d, not %d", rank, last[rank], i)
		}
	}
}
