package residency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/internal/testing/parttest"
)

// TestFlow: who would wait too long is refused, who waits gives up with its context, and both count
// nothing; upkeep owes what it moved alone. The estimate of loads keeps to the limit.
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
	if f.Owes() {
		t.Error("upkeep owes what requests took")
	}
	f.Owe(1)
	if !f.Owes() || f.Left() != -1999 {
		t.Errorf("upkeep owes: %v, %d left", f.Owes(), f.Left())
	}
	if l := r.Cold.Line(); l.PerByte != 1e6 || l.Latency < 2*time.Second {
		t.Errorf("loads take %+v", l)
	}
	r.Advance(3 * time.Second)
	if f.Owes() {
		t.Error("upkeep that has repaid owes something")
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
