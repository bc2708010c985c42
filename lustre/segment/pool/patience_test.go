package pool

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestPatience: what is slow and yet makes progress is waited for; what does not
// is not, and the next wait is shorter.
func TestPatience(t *testing.T) {
	p := Patience{Now: time.Second}
	var steps atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 150 {
			time.Sleep(10 * time.Millisecond)
			steps.Add(1)
		}
	}()
	if !p.Wait(done, &steps) || p.Now != time.Second {
		t.Errorf("it did not wait, and would wait %v", p.Now)
	}
	p.Now = 20 * time.Millisecond
	for range 3 {
		if p.Wait(make(chan struct{}), &steps) || p.Now < 10*time.Millisecond {
			t.Errorf("it waited, and would wait %v", p.Now)
		}
	}
}
