package pool

import "sync"

// Alone admits one job at a time, which may hang: others don't wait for it, they are not
// admitted. The zero value admits the first. It is safe for concurrent use.
type Alone struct {
	mu    sync.Mutex
	busy  bool
	ended bool
}

// Begin reports whether a job is admitted. Then End must be called once.
func (a *Alone) Begin() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy || a.ended {
		return false
	}
	a.busy = true
	return true
}

// Busy reports whether there is a job.
func (a *Alone) Busy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.busy
}

// End ends the job; without more no other is admitted from then on.
func (a *Alone) End(more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy, a.ended = false, !more
}
