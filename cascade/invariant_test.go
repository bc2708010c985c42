package cascade

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/internal/testing/parttest"
)

// checkInvariants recounts everything the index keeps incrementally.
func checkInvariants(t *testing.T, s *Store) {
	t.Helper()
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	for end := time.Now().Add(patient); s.state.RanksColdLocked() && s.state.Cold.Ranking && time.Now().Before(end); { // the cleaner is at it
		s.state.Mu.Unlock()
		time.Sleep(time.Millisecond)
		s.state.Mu.Lock()
	}
	checkIndex(t, s)
	parttest.CheckLocked(t, s.state)
}

// holes counts blocks evicted from memory tier m under a cached child. It
// watches the tier's policy for removals.
type removals struct {
	policy.Policy
	removed func(policy.Node)
}

func (w *removals) Remove(n policy.Node, evicted bool) {
	w.removed(n)
	w.Policy.Remove(n, evicted)
}

// TestEvictionLeavesNoHole is the invariant of names.Graph, for each policy,
// over random chains with shared prefixes that are put and got in any order.
func TestEvictionLeavesNoHole(t *testing.T) {
	for _, p := range policy.Names() {
		for _, cold := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cold=%v", p, cold), func(t *testing.T) {
				r := newRig(t, 8<<20, cold, func(o *Options) { o.Policy = p; o.Capacity = 60 * 20_000 })
				s := r.Store
				var deleting atomic.Bool
				m := s.state.Mem[0]
				s.state.Mu.Lock()
				m.Policy = &removals{m.Policy, func(node policy.Node) {
					if deleting.Load() {
						return
					}
					for _, n := range m.Nodes[node].Names() {
						if n.Resident(0) > 0 {
							t.Errorf("%q leaves %d cached children behind", n.Key(), n.Resident(0))
						}
					}
				}}
				s.state.Mu.Unlock()
				rng := rand.New(rand.NewPCG(11, 12))
				evicted := uint64(0)
				for range 600 {
					keys := randomChain(rng)
					views, err := r.GetBatch(context.Background(), "ns", keys)
					if err != nil {
						t.Fatal(err)
					}
					var items []PutItem
					for i, v := range views {
						if v != nil {
							v.Release()
							continue
						}
						e := ns(keys[i])
						if i > 0 {
							e.Parent = keys[i-1]
						}
						items = append(items, PutItem{e, data(hashOf(keys[i]), 20_000)})
					}
					if rng.IntN(3) == 0 { // children before their parents
						rng.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
					}
					if _, err := r.PutBatch(context.Background(), items); err != nil && !errors.Is(err, ErrNoRoom) {
						t.Fatal(err)
					}
					if rng.IntN(20) == 0 {
						deleting.Store(true)
						r.Delete(context.Background(), "ns", keys[rng.IntN(len(keys))])
						deleting.Store(false)
					}
				}
				evicted = r.Stats().Tiers[0].Evicted
				if evicted == 0 {
					t.Error("nothing was evicted")
				}
				checkInvariants(t, s)
			})
		}
	}
}

// randomChain walks down a tree of keys; prefixes repeat often.
func randomChain(rng *rand.Rand) []string {
	var keys []string
	key := ""
	for range 2 + rng.IntN(9) {
		key += string(rune('a' + min(rng.IntN(6), rng.IntN(6))))
		keys = append(keys, key)
	}
	return keys
}

func hashOf(s string) (h uint64) {
	for _, c := range []byte(s) {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	return h
}
