package estimate

import (
	"math"
	"sync"
	"time"
)

// Odds estimates how much of what others are asked for they have. At first that is assumed to be
// all, and is assumed anew some minutes after the last question, as a level's speed is. It is safe
// for concurrent use.
type Odds struct {
	mu          sync.Mutex
	asked, have float64 // weighted sums over questions
	at          time.Duration
}

// Note notes which part of what a question was about others had.
func (o *Odds) Note(now time.Duration, part float64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ageLocked(now)
	o.asked, o.have = o.asked*perLoad+1, o.have*perLoad+part
}

// Of is the estimate as of now, above 0 and at most 1.
func (o *Odds) Of(now time.Duration) float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ageLocked(now)
	return (o.have + firstWeight) / (o.asked + firstWeight)
}

func (o *Odds) ageLocked(now time.Duration) {
	if now <= o.at {
		return
	}
	by := math.Exp2(-float64(now-o.at) / float64(halfLife))
	o.asked, o.have, o.at = o.asked*by, o.have*by, now
}

// Pays reports whether to ask for a copy on another level, of bytes that a level has: what is won
// where there is one, by how likely that is, is more than a question takes, which is the
// latency of the other level.
func Pays(has, other Line, bytes int64, odds float64) bool {
	won := has.Time(bytes) - other.Time(bytes)
	return odds*float64(won) > float64(other.Latency)
}
