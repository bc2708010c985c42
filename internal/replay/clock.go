package replay

import (
	"context"
	"sync/atomic"
	"time"

	"cascadekv/internal/trace"
)

// Clock is the time of the trace, for cascade.Options.Clock of stores in this process. It is safe
// for concurrent use, and never goes back. The zero value stands at 0.
type Clock struct{ now atomic.Int64 }

// Now is the time of the request that was begun last, of those of several workers the latest.
func (c *Clock) Now() time.Duration { return time.Duration(c.now.Load()) }

func (c *Clock) reach(at time.Duration) {
	for now := c.now.Load(); now < int64(at) && !c.now.CompareAndSwap(now, int64(at)); {
		now = c.now.Load()
	}
}

// times has the times of a run's requests.
type times struct {
	clock *Clock        // may be nil
	began time.Duration // by clock
	start time.Time
	first int64 // timestamp
	any   bool
}

func newTimes(clock *Clock) *times {
	t := &times{clock: clock, start: time.Now()}
	if clock != nil {
		t.began = clock.Now()
	}
	return t
}

// of is the time of a request, since that of the first one.
func (t *times) of(r *trace.Request) time.Duration {
	if !t.any {
		t.first, t.any = r.Timestamp, true
	}
	return max(0, time.Duration(r.Timestamp-t.first)*time.Millisecond)
}

// begin has the clock show the time of a request.
func (t *times) begin(at time.Duration) {
	if t.clock != nil {
		t.clock.reach(t.began + at)
	}
}

// wait waits until it is that time, or ctx ends.
func (t *times) wait(ctx context.Context, at time.Duration) {
	timer := time.NewTimer(time.Until(t.start.Add(at)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
