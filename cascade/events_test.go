package cascade

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func numbered(n int) Event { return Event{Kind: Stored, Key: fmt.Sprint(n)} }

func TestEventLogIsOffUntilAsked(t *testing.T) {
	l := newEventLog(4)
	l.add(numbered(1))
	if next, lost, events := l.since(0, 10); next != 1 || lost != 0 || events != nil {
		t.Errorf("first asked: %d, %d, %v", next, lost, events)
	}
	l.add(numbered(1))
	if next, lost, events := l.since(1, 10); next != 2 || lost != 0 || !slices.Equal(events, []Event{numbered(1)}) {
		t.Errorf("%d, %d, %v", next, lost, events)
	}
}

// TestEventLogAgainstAList asks random questions of a log and of a list that
// forgets nothing.
func TestEventLogAgainstAList(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for kept := 1; kept < 9; kept++ {
		l := newEventLog(kept)
		l.since(0, 0)
		total := 0
		for range 2000 {
			if rng.IntN(3) > 0 {
				total++
				l.add(numbered(total))
				continue
			}
			first, most := rng.IntN(total+3), rng.IntN(kept+2)
			next, lost, events := l.since(uint64(first), most)
			oldest := max(1, total-kept+1)
			switch {
			case first == 0:
				if next != uint64(total+1) || lost != 0 || len(events) != 0 {
					t.Fatalf("from now on: %d, %d, %v", next, lost, events)
				}
				continue
			case first > total+1:
				if next != uint64(total+1) || lost != 1 || len(events) != 0 {
					t.Fatalf("event %d of %d: %d, %d, %v", first, total, next, lost, events)
				}
				continue
			}
			if want := max(0, oldest-first); lost != uint64(want) {
				t.Fatalf("kept %d: event %d of %d: %d are lost, want %d", kept, first, total, lost, want)
			}
			begin := max(first, oldest)
			if want := min(most, total+1-begin); len(events) != want || next != uint64(begin+want) {
				t.Fatalf("kept %d: event %d of %d, %d at most: %d, next %d", kept, first, total, most, len(events), next)
			}
			for i, e := range events {
				if e != numbered(begin+i) {
					t.Fatalf("event %d is %q", begin+i, e.Key)
				}
			}
		}
	}
}

func TestEventLogWakesWhoWaits(t *testing.T) {
	l := newEventLog(4)
	next, _, _ := l.since(0, 0)
	const waiters = 8
	came := make(chan bool, waiters)
	for range waiters {
		go func() { came <- l.wait(t.Context(), next) }()
	}
	l.add(numbered(1))
	for range waiters {
		if !<-came {
			t.Error("a wait ended without an event")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l.wait(ctx, next+1) {
		t.Error("an event that nobody added")
	}
}

// replay applies events to a set of keys.
func replay(t *testing.T, s *Store, from uint64, names map[string]int64) (next uint64) {
	t.Helper()
	for {
		next, lost, events := s.Events(from, 100)
		if lost > 0 {
			t.Fatalf("%d events are lost", lost)
		}
		for _, e := range events {
			switch key := e.Namespace + "/" + e.Key; e.Kind {
			case Stored:
				names[key] = e.Size
			case Removed:
				if _, ok := names[key]; !ok {
					t.Errorf("%q is removed and was not there", key)
				}
				delete(names, key)
			}
		}
		if len(events) == 0 {
			return next
		}
		from = next
	}
}

// readableNames lists the names of a store that are not bound, with their sizes.
func readableNames(s *Store) map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := map[string]int64{}
	for _, sp := range s.mu.spaces {
		for key, n := range sp.byKey {
			if n.block != nil && !n.entry.Bound && n.visible(s.now) {
				names[sp.name+"/"+key] = n.block.info.Size
			}
		}
	}
	return names
}

// TestEventsReplayToWhatIsReadable: whatever happens to a store, its events lead
// from what was readable to what is.
func TestEventsReplayToWhatIsReadable(t *testing.T) {
	for name, x := range map[string]struct {
		cold  bool
		bytes int64
	}{"memory only": {false, 4 << 20}, "cold tier": {true, 4 << 20}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, x.bytes, x.cold)
			rng := rand.New(rand.NewPCG(5, 6))
			from, _, _ := r.Events(0, 0)
			names, kinds := map[string]int64{}, map[int]int{}
			for step := range 3000 {
				e := Entry{Namespace: []string{"a", "b"}[rng.IntN(2)], Key: fmt.Sprint(rng.IntN(200))}
				if rng.IntN(4) == 0 {
					if e.Parent = fmt.Sprint(rng.IntN(200)); e.Parent == e.Key {
						e.Parent = ""
					}
					e.Bound = e.Parent != "" && rng.IntN(2) == 0
				}
				if rng.IntN(10) == 0 {
					e.Expires = r.clock().Add(time.Duration(rng.IntN(20)) * time.Second)
				}
				kind := rng.IntN(20)
				kinds[kind]++
				switch {
				case kind < 8:
					_ = r.stage(e, data(uint64(rng.IntN(50)), 1000+rng.IntN(40)*1000)) // no room: nothing changed
				case kind < 12:
					_, _ = r.Put(t.Context(), e, data(uint64(rng.IntN(50)), 20_000), nil) // likewise
				case kind < 14:
					r.Delete(t.Context(), e.Namespace, e.Key)
				case kind < 15:
					r.Expire(t.Context(), e.Namespace, e.Key, r.clock().Add(time.Second))
				case kind < 17:
					r.advance(time.Second)
				case kind < 18 && rng.IntN(10) == 0:
					r.Clear(t.Context(), e.Namespace, false)
				case kind < 19:
					if v, err := r.GetUnverified(t.Context(), e.Namespace, e.Key); err == nil {
						if rng.IntN(20) == 0 {
							v.Verify(v.CRC() + 1) // as if it were damaged
						}
						v.Release()
					}
				}
				if step%500 == 0 {
					from = replay(t, r.Store, from, names)
				}
			}
			r.advance(0) // what has ended is forgotten
			replay(t, r.Store, from, names)
			want := readableNames(r.Store)
			for key, size := range want {
				if got, ok := names[key]; !ok || got != size {
					t.Errorf("%q has %d bytes, events say %d (%v)", key, size, got, ok)
				}
			}
			for key := range names {
				if _, ok := want[key]; !ok {
					t.Errorf("%q is not readable, events say it is", key)
				}
			}
			if st := r.Stats(); st.Names < 20 || !x.cold && st.Tiers[0].Evicted == 0 {
				t.Errorf("%d names, %d evicted: this tests little", st.Names, st.Tiers[0].Evicted)
			}
		})
	}
}
