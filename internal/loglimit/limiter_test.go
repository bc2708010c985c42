package loglimit

import (
	"strconv"
	"sync"
	"testing"
	"time"
)

// TestAllow: one line for each key and period, and no event is lost of the sum.
func TestAllow(t *testing.T) {
	now := time.Unix(1000, 0)
	l := &Limiter{Every: time.Minute, Keys: 2, now: func() time.Time { return now }}
	for i, step := range []struct {
		after      time.Duration
		key        string
		suppressed uint64
		ok         bool
	}{
		{0, "a", 0, true},
		{time.Second, "a", 0, false},
		{time.Second, "b", 1, true},
		{time.Second, "c", 0, false}, // no third key in a period
		{time.Second, "a", 0, false},
		{time.Minute, "c", 2, true},
		{time.Second, "a", 0, true},
		{time.Second, "a", 0, false},
	} {
		now = now.Add(step.after)
		if n, ok := l.Allow(step.key); n != step.suppressed || ok != step.ok {
			t.Errorf("step %d, %s: %d, %v; want %d, %v", i, step.key, n, ok, step.suppressed, step.ok)
		}
	}
	if n := l.Rest(); n != 0 {
		t.Errorf("Rest in the period: %d", n)
	}
	now = now.Add(time.Minute)
	if n := l.Rest(); n != 1 {
		t.Errorf("Rest after the period: %d, want 1", n)
	}
	if n := l.Rest(); n != 0 {
		t.Errorf("Rest again: %d", n)
	}
	if n, ok := l.Allow("a"); n != 0 || !ok {
		t.Errorf("after Rest: %d, %v", n, ok)
	}
}

// TestAllowKeepsFewKeys: memory does not grow with the keys that come, and every
// event is logged or counted.
func TestAllowKeepsFewKeys(t *testing.T) {
	l := &Limiter{Every: time.Hour}
	var logged, counted uint64
	var mu sync.Mutex
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 1000 {
				n, ok := l.Allow(strconv.Itoa(g*1000 + i))
				mu.Lock()
				if ok {
					logged++
				}
				counted += n
				mu.Unlock()
			}
		})
	}
	all.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if logged != DefaultKeys || len(l.logged) != DefaultKeys || logged+counted+l.suppressed != 4000 {
		t.Errorf("%d lines, %d counted in them, %d left, %d keys kept", logged, counted, l.suppressed, len(l.logged))
	}
}
