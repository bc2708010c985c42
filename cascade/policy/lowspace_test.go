package policy

import (
	"testing"
	"time"
)

// TestLowSpace takes it through a shortage and a second one.
func TestLowSpace(t *testing.T) {
	var h LowSpace
	now := time.Unix(1_800_000_000, 0)
	step := func(what string, lowered bool, limit int64, used int64) {
		t.Helper()
		if got := h.Refuse(now, used); got != lowered || h.limit != limit {
			t.Errorf("%s: limit %d, lowered %v; want %d, %v", what, h.limit, got, limit, lowered)
		}
	}
	step("the first refusal", true, 1500, 1600)
	step("another at once", false, 1500, 1500)
	now = now.Add(LowSpaceStep)
	step("not merged yet", false, 1500, 1550)
	h.merged = true
	step("merged, and full all the same", true, 1400, 1550)
	if h.merged {
		t.Error("merging has not begun anew")
	}
	now = now.Add(LowSpaceStep)
	step("within the limit, and full", true, 1000, 1100)
	for range 3 {
		now = now.Add(LowSpaceStep)
		h.Refuse(now, 800)
	}
	for _, c := range []struct {
		used int64
		want bool
	}{{900, true}, {900, false}, {850, true}, {800, false}} {
		if got := h.Evacuate(now, c.used); got != c.want {
			t.Errorf("evacuate at %d bytes: %v", c.used, got)
		}
	}
	h.owed = false
	if h.Refuse(now, 850); h.owed || h.Evacuate(now, 850) {
		t.Error("what did not help is tried again at once")
	}
	now = now.Add(LowSpaceStep)
	if h.Refuse(now, 850); !h.owed || !h.Evacuate(now, 850) {
		t.Error("what did not help is not tried again")
	}
	if h.limit != 800 {
		t.Errorf("limit %d, want no less than half of what there was", h.limit)
	}
	now = now.Add(quietFor - 1)
	if h.Accept(now, 700); h.limit != 800 {
		t.Errorf("limit %d soon after a refusal", h.limit)
	}
	now = now.Add(1)
	if h.Accept(now, 700); h.limit != 0 {
		t.Errorf("limit %d long after the last refusal", h.limit)
	}
	step("the next shortage", true, 750, 800)
	h = LowSpace{}
	step("nothing there to give up", true, 1, 0)
}
