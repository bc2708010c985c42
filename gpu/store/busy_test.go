package store

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"cascadekv/tiers"
)

// TestBusy has several users of one pool that is too small for them: each sees blocks that are
// right, or none.
func TestBusy(t *testing.T) {
	const users, slots = 4, 3
	_, h, o := rig(t, 3, small, users*slots, 10)
	s := open(t, o)
	var all sync.WaitGroup
	for u := range users {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(u), 9))
			ctx := context.Background()
			mine := []int{u * slots, u*slots + 1, u*slots + 2}
			for range 60 {
				some := ids(rnd.IntN(20), slots)
				p, err := s.Reserve(ctx, some)
				if errors.Is(err, tiers.ErrFull) {
					s.Remove(ids(rnd.IntN(20), 1)[0])
				} else if err != nil {
					t.Error(err)
				} else {
					for i, id := range some {
						h.put(id, mine[i])
					}
					for l := range small.Layers {
						if err := p.StoreLayer(ctx, l, mine); err != nil {
							t.Error(err)
						}
					}
					_, quiet, err := p.Commit(ctx)
					if err != nil {
						t.Error(err)
					}
					<-quiet
				}
				some = ids(rnd.IntN(20), slots)
				g, err := s.Retrieve(some)
				if err != nil {
					t.Error(err)
					return
				}
				for l := range small.Layers {
					if errs := g.RetrieveLayer(ctx, l, mine[:g.Blocks()]); errs != nil {
						t.Error(errs)
					}
				}
				for i := range g.Blocks() {
					if !h.holds(some[i], mine[i]) {
						t.Errorf("block %v has other bytes", some[i])
					}
				}
				<-g.Close()
			}
		})
	}
	all.Wait()
	if got := s.Stats(); got.Corrupt != 0 || got.Failed != 0 || got.Retrieved == 0 || got.Blocks+got.Free+got.Removed != 10 {
		t.Errorf("%+v", got)
	}
}
