package load

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// TestPlaces: no more are taken than there are, whoever cannot wait leaves none
// taken, and nobody waits for ever.
func TestPlaces(t *testing.T) {
	p := newSemaphore(16)
	var mu sync.Mutex
	taken := 0
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for range 200 {
				n := 1 + rng.IntN(20)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(2000))*time.Microsecond)
				leave, err := p.take(ctx, n)
				cancel()
				if err != nil {
					continue
				}
				mu.Lock()
				if taken += min(n, 16); taken > 16 {
					t.Errorf("%d places of 16 are taken", taken)
				}
				mu.Unlock()
				time.Sleep(time.Duration(rng.IntN(50)) * time.Microsecond)
				mu.Lock()
				taken -= min(n, 16)
				mu.Unlock()
				leave()
			}
		})
	}
	all.Wait()
	if n := len(p.taken) + len(p.gate); n != 0 {
		t.Errorf("%d are still taken", n)
	}
}

// TestLongChainLeavesRoom: a request with many parts, none of which comes to
// an end, takes its own share of the places and no more.
func TestLongChainLeavesRoom(t *testing.T) {
	all := newSemaphore(fetchPlaces)
	long := newSemaphore(requestPlaces)
	var leaves []func()
	for range requestPlaces / 4 {
		leave, err := turn(t.Context(), 4, long, all)
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := turn(ended, 4, long, all); err == nil {
		t.Error("one request has more than its share")
	}
	leave, err := turn(t.Context(), 1, newSemaphore(requestPlaces), all)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	leave()
	// Those that take long leave their places to others.
	next, err := turn(t.Context(), 4, long, all)
	if err != nil {
		t.Fatal(err)
	}
	next()
	for _, leave := range leaves {
		leave()
	}
	if n := len(all.taken) + len(long.taken); n != 0 {
		t.Errorf("%d places are still taken", n)
	}
}
