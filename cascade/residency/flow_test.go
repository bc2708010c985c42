package residency_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/internal/testing/parttest"
)

// TestFlow: who would wait too long is refused, who waits gives up with its context, and both count
// nothing; upkeep waits for what it owes alone. The estimate of loads keeps to the limit.
func TestFlow(t *testing.T) {
	r := parttest.New(t, parttest.NewFiles(t).Use, func(o *residency.Options) { o.Limits.ReadRate = 1000 })
	f := &r.Cold.Reads
	ended, end := context.WithCancel(t.Context())
	end()
	if err := f.Within(ended, 1999, 0); err != nil || f.Left() != -999 {
		t.Errorf("%v, %d left", err, f.Left())
	}
	if err := f.Within(t.Context(), 1, 999*time.Millisecond); !errors.Is(err, residency.ErrOverBudget) || f.Left() != -999 {
		t.Errorf("a wait of a second: %v, %d left", err, f.Left())
	}
	if err := f.Within(ended, 1000, 1001*time.Millisecond); !errors.Is(err, context.Canceled) || f.Left() != -999 {
		t.Errorf("a wait that ends: %v, %d left", err, f.Left())
	}
	f.Take(1000)
	if err := f.Await(ended); err != nil {
		t.Errorf("upkeep that owes nothing: %v", err)
	}
	f.Owe(1)
	if err := f.Await(ended); !errors.Is(err, context.Canceled) || f.Left() != -1999 {
		t.Errorf("upkeep that owes: %v, %d left", err, f.Left())
	}
	if l := r.Cold.Line(); l.PerByte != 1e6 || l.Latency < 2*time.Second {
		t.Errorf("loads take %+v", l)
	}
	r.Advance(3 * time.Second)
	if err := f.Await(ended); err != nil {
		t.Errorf("upkeep that has repaid: %v", err)
	}
	if b := r.Cold.BudgetStats(); b == nil || *b != (residency.BudgetStats{Reads: 1000}) {
		t.Errorf("%+v", b)
	}
	l := *r.Limits.Load()
	l.ReadRate = 0
	r.Limits.Store(&l)
	if l := r.Cold.Line(); r.Cold.BudgetStats() != nil || l.PerByte > 2 || f.Within(ended, 1<<40, 0) != nil || f.Wait() != 0 {
		t.Errorf("without a limit loads take %+v", l)
	}
}

// TestFlowPause: Await sleeps between two looks, whatever the limit, and if the clock stands still.
func TestFlowPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := parttest.New(t, parttest.NewFiles(t).Use, func(o *residency.Options) { o.Limits.ReadRate = math.MaxInt64 })
		ctx, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer end()
		looks, now := 0, r.State.Now
		r.State.Now = func() time.Time {
			if looks++; looks > 1000 {
				end()
			}
			return now()
		}
		f := &r.Cold.Reads
		f.Owe(1)
		if err := f.Await(ctx); !errors.Is(err, context.DeadlineExceeded) || looks > 102 {
			t.Errorf("%v after %d looks", err, looks)
		}
	})
}
