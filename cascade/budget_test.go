package cascade

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

const coldBlock = 20_000

// budgeted has room for 60 blocks in memory and for so many in the cold tier.
func budgeted(t *testing.T, p string, blocks int64) *rig {
	t.Helper()
	return newRig(t, 8<<20, true, func(o *Options) {
		o.Policy, o.Capacity, o.Limits.ColdBytes = p, 60*coldBlock, blocks*coldBlock*5/4
	})
}

func (s *Store) coldBytes() int64 {
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	return s.state.Cold.Bytes
}

// TestColdTierKeepsItsBudget puts far more chains than the budget holds: what
// leaves the cold tier leaves no hole in any chain, in whichever tier its other
// blocks are.
func TestColdTierKeepsItsBudget(t *testing.T) {
	for _, p := range policy.Names() {
		t.Run(p, func(t *testing.T) {
			r := budgeted(t, p, 150)
			s := r.Store
			s.state.Mu.Lock()
			s.state.Cold.Policy = &removals{s.state.Cold.Policy, func(node policy.Node) {
				for _, n := range s.state.Cold.Nodes[node].Names() {
					if n.Leads() {
						t.Errorf("%q leaves stored children behind", n.Key())
					}
				}
			}}
			s.state.Mu.Unlock()
			rng := rand.New(rand.NewPCG(21, 22))
			for i := range 800 {
				putMissing(t, r, rng, i)
			}
			eventually(t, "the budget is kept", func() bool { return s.coldBytes() <= 150*coldBlock })
			st := s.Stats()
			if cold := st.Tiers[1]; cold.Evicted == 0 || st.Corrupt != 0 {
				t.Errorf("%+v", st)
			}
			checkInvariants(t, s)
			r.Store.Close(context.Background())
			r.open()
			eventually(t, "the budget is kept by the next one too", func() bool { return r.coldBytes() <= 150*coldBlock })
			checkInvariants(t, r.Store)
		})
	}
}

// thin is a cold tier that stores blocks in half their bytes.
type thin struct{ tiers.Files }

func (thin) StoredSize(info block.Info) int64 { return info.Size / 2 }

// TestColdBudgetCountsWhatIsStored: a tier that encodes holds more blocks within
// the same budget.
func TestColdBudgetCountsWhatIsStored(t *testing.T) {
	r := budgeted(t, "prefix", 150)
	r.Store.Close(context.Background())
	r.cold = thin{r.cold}
	r.open()
	rng := rand.New(rand.NewPCG(21, 22))
	for i := range 800 {
		putMissing(t, r, rng, i)
	}
	eventually(t, "the budget is kept", func() bool { return r.coldBytes() <= 150*coldBlock })
	if cold := r.Stats().Tiers[1]; cold.Evicted == 0 || cold.Usage.Blocks < 200 {
		t.Errorf("%+v", cold)
	}
	checkInvariants(t, r.Store)
}

// putMissing does what an engine does with one request: it gets what is there
// of a chain and puts the rest.
func putMissing(t *testing.T, r *rig, rng *rand.Rand, turn int) {
	t.Helper()
	keys := randomChain(rng)
	keys[0] = fmt.Sprint(turn/40, keys[0]) // what is popular changes
	for i := 1; i < len(keys); i++ {
		keys[i] = keys[i-1] + keys[i]
	}
	views, err := r.GetBatch(context.Background(), "ns", keys)
	if err != nil {
		t.Fatal(err)
	}
	var items []PutItem
	for i, v := range views {
		if v != nil {
			if string(v.Bytes()) != string(data(hashOf(keys[i]), coldBlock)) {
				t.Errorf("wrong bytes of %s from %s", keys[i], v.Tier())
			}
			v.Release()
			continue
		}
		e := ns(keys[i])
		if i > 0 {
			e.Parent = keys[i-1]
		}
		items = append(items, PutItem{e, data(hashOf(keys[i]), coldBlock)})
	}
	if _, err := r.PutBatch(context.Background(), items); err != nil && !errors.Is(err, ErrNoRoom) {
		t.Fatal(err)
	}
}

// TestLeasedBlocksStayInTheColdTier: a lease is a promise, whatever the budget.
func TestLeasedBlocksStayInTheColdTier(t *testing.T) {
	r := budgeted(t, "lru", 100)
	for i := range 40 {
		r.put(ns(fmt.Sprint("leased", i)), data(uint64(i), coldBlock))
		if !r.Lease(context.Background(), "ns", fmt.Sprint("leased", i), "engine", time.Hour) {
			t.Fatal("no lease")
		}
	}
	for i := range 400 {
		r.put(ns(fmt.Sprint("other", i)), data(uint64(1000+i), coldBlock))
	}
	eventually(t, "the budget is kept", func() bool { return r.coldBytes() <= 100*coldBlock })
	for i := range 40 {
		r.want(fmt.Sprint("leased", i), data(uint64(i), coldBlock))
	}
	checkInvariants(t, r.Store)
	r.Leases().End("engine")
	for i := range 400 {
		r.put(ns(fmt.Sprint("later", i)), data(uint64(2000+i), coldBlock))
	}
	gone := 0
	for i := range 40 {
		if !r.Contains(context.Background(), "ns", fmt.Sprint("leased", i)) {
			gone++
		}
	}
	if gone == 0 {
		t.Error("leases that were given back keep their blocks")
	}
	checkInvariants(t, r.Store)
}

// TestBudgetBelowMemory: what memory keeps fills the budget, and the cold tier
// is left alone. Puts go on.
func TestBudgetBelowMemory(t *testing.T) {
	r := budgeted(t, "prefix", 10)
	for i := range 300 {
		r.put(ns(fmt.Sprint(i)), data(uint64(i), coldBlock))
	}
	if r.Stats().Tiers[1].Errors == 0 {
		t.Error("nobody was told that the budget is too small")
	}
	r.want("299", data(299, coldBlock))
	checkInvariants(t, r.Store)
}

// TestRingsLeaveTheColdTier: blocks that hold each other in a ring do not fill
// the cold tier for ever.
func TestRingsLeaveTheColdTier(t *testing.T) {
	r := budgeted(t, "lru", 80)
	for i := range 100 {
		a, b := data(uint64(2*i), coldBlock), data(uint64(2*i+1), coldBlock)
		for j, p := range [][]byte{a, b, a} {
			e := ns(fmt.Sprint(i, ".", j))
			if j > 0 {
				e.Parent = fmt.Sprint(i, ".", j-1)
			}
			r.put(e, p)
		}
	}
	eventually(t, "the budget is kept", func() bool { return r.coldBytes() <= 80*coldBlock })
	checkInvariants(t, r.Store)
}

// TestBudgetChanges: a smaller share is kept soon.
func TestBudgetChanges(t *testing.T) {
	r := budgeted(t, "lru", 200)
	for i := range 300 {
		r.put(ns(fmt.Sprint(i)), data(uint64(i), coldBlock))
	}
	r.limit(func(l *Limits) { l.ColdBytes = 90 * coldBlock * 5 / 4 })
	eventually(t, "the smaller budget is kept", func() bool { return r.coldBytes() <= 90*coldBlock })
	checkInvariants(t, r.Store)
}
