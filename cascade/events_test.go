package cascade

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"cascadekv/cascade/events"
	"cascadekv/cascade/residency"
)

// replay applies events to a set of keys.
func replay(t *testing.T, s *Store, from uint64, names map[string]int64) (next uint64) {
	t.Helper()
	for {
		next, lost, some := s.Events().Since(from, 100)
		if lost > 0 {
			t.Fatalf("%d events are lost", lost)
		}
		for _, e := range some {
			switch key := e.Namespace + "/" + e.Key; e.Kind {
			case events.Stored:
				names[key] = e.Size
			case events.Removed:
				if _, ok := names[key]; !ok {
					t.Errorf("%q is removed and was not there", key)
				}
				delete(names, key)
			}
		}
		if len(some) == 0 {
			return next
		}
		from = next
	}
}

// readableNames lists the names of a store that are not bound, with their sizes.
func readableNames(s *Store) map[string]int64 {
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	names := map[string]int64{}
	for _, ns := range s.state.Mu.Names.Spaces() {
		sp := s.state.Mu.Names.Space(ns)
		for n := range sp.Nodes() {
			if residency.BlockOf(n) != nil && !n.Bound() && n.Visible(s.state.Now) {
				names[sp.Name()+"/"+n.Key()] = residency.BlockOf(n).Info.Size
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
			from, _, _ := r.Events().Since(0, 0)
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
					if v, err := r.Get(t.Context(), e.Namespace, e.Key, Unverified); err == nil {
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
