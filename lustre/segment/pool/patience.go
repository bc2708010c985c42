package pool

import (
	"sync/atomic"
	"time"
)

// leastPatience is what remains of the first patience when several files have not
// answered: the next ones are not likely to either.
const leastPatience = 100 * time.Millisecond

// Patience is how long one round waits for what makes no progress.
type Patience struct{ Now time.Duration }

// Wait returns true when done is closed, and false when nothing has happened for
// long. Then the next wait is half as long.
func (p *Patience) Wait(done <-chan struct{}, steps *atomic.Int64) bool {
	timer := time.NewTimer(p.Now)
	defer timer.Stop()
	for seen := int64(0); ; {
		select {
		case <-done:
			return true
		case <-timer.C:
		}
		n := steps.Load()
		if n == seen {
			p.Now = min(p.Now, max(p.Now/2, leastPatience))
			return false
		}
		seen = n
		timer.Reset(p.Now)
	}
}
