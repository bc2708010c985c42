package cli

import (
	"context"
	"testing"
	"time"
)

// TestInterrupts: the first signal lets a verb clean up, those that come with it
// do not cut that short, a later one does; a verb that heeds none is ended.
func TestInterrupts(t *testing.T) {
	const soon = 30 * time.Millisecond
	for name, c := range map[string]struct {
		watched bool
		after   []time.Duration // between the signals, the first from the start
		ended   int             // index of the signal that ends the program; -1: none
	}{
		"one":                 {true, []time.Duration{0}, -1},
		"several at once":     {true, []time.Duration{0, soon, soon}, -1},
		"a later one":         {true, []time.Duration{0, soon, sameOrder}, 2},
		"nobody watches":      {false, []time.Duration{0}, 0},
		"late in the program": {true, []time.Duration{time.Hour, soon}, -1},
	} {
		i := newInterruptible(context.Background())
		if c.watched {
			_, stop := context.WithCancel(i) // as net, exec and others do
			defer stop()
		}
		at, ended := time.Unix(1, 0), -1
		for n, d := range c.after {
			at = at.Add(d)
			if i.signal(at) && ended < 0 {
				ended = n
			}
		}
		if ended != c.ended || c.watched != (i.Err() != nil) {
			t.Errorf("%s: signal %d ends the program, want %d; the context: %v", name, ended, c.ended, i.Err())
		}
	}
}
