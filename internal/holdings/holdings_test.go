package holdings

import (
	"math"
	"testing"
)

// TestBudget: what is taken is within the limit, counted as the arena rounds it, and
// what can never fit is refused whatever its size.
func TestBudget(t *testing.T) {
	b := NewBudget(heldShare << 20)
	if b.Limit() != 1<<20 {
		t.Fatalf("limit %d", b.Limit())
	}
	n := 0
	for b.Take(1) {
		n++
	}
	if want := int((1 << 20) / Size(1)); n != want {
		t.Errorf("%d of the smallest blocks, want %d", n, want)
	}
	for range n {
		b.GiveBack(1)
	}
	if used, _, _, _ := b.Used(); used != 0 {
		t.Errorf("%d bytes are left", used)
	}
	for _, size := range []int64{1<<20 + 1, math.MaxInt64} {
		if b.Take(size) {
			t.Errorf("%d bytes are taken", size)
		}
	}
	if !b.Take(1<<20 - 4096) {
		t.Error("a block that fits is refused")
	}
}
