package ratelog

import (
	"sync"
	"time"
)

// Burst is how many lines a Limit allows at once.
const Burst = 10

// Every is the time after which a Limit allows another line.
const Every = time.Second

// Limit allows Burst lines, and one more each Every. Its zero value is ready and
// it is safe for concurrent use.
type Limit struct {
	mu      sync.Mutex
	spent   int       // of Burst
	since   time.Time // when spent was up to date
	skipped uint64
}

// Allow reports whether a line may be logged now, and how many were not since
// the last one that was.
func (l *Limit) Allow(now time.Time) (skipped uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := now.Sub(l.since) / Every; n > 0 {
		l.spent = max(0, l.spent-int(min(n, Burst)))
		l.since = now
	}
	if l.spent == Burst {
		l.skipped++
		return 0, false
	}
	l.spent++
	skipped, l.skipped = l.skipped, 0
	return skipped, true
}
