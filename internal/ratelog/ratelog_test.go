package ratelog

import (
	"testing"
	"time"
)

func TestAllow(t *testing.T) {
	var l Limit
	now := time.Unix(1000, 0)
	lines := 0
	for range 1000 {
		if _, ok := l.Allow(now); ok {
			lines++
		}
	}
	if lines != Burst {
		t.Errorf("%d lines at once, want %d", lines, Burst)
	}
	if skipped, ok := l.Allow(now.Add(Every)); !ok || skipped != 1000-Burst {
		t.Errorf("a moment later: %v, %d were skipped", ok, skipped)
	}
	if _, ok := l.Allow(now.Add(Every)); ok {
		t.Error("two lines in one interval after a burst")
	}
	if skipped, ok := l.Allow(now.Add(time.Hour)); !ok || skipped != 1 {
		t.Errorf("after an hour: %v, %d were skipped", ok, skipped)
	}
}
