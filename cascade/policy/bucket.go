package policy

import (
	"math"
	"time"
)

// Bucket bounds a rate of bytes: over any time no more are taken than the rate makes of it and
// of one second more, but for the last request: that may take more than is left, and the next
// waits until it is made up for. The zero value is full. Rates are in bytes per second, 0 is no bound, and
// may differ from call to call. Not safe for concurrent use.
type Bucket struct {
	spent float64 // bytes that are missing; more than the rate makes in a second: a debt
	at    time.Time
}

// Take takes bytes, whether they are there or not.
func (b *Bucket) Take(now time.Time, rate, bytes int64) {
	b.refill(now, rate)
	if rate > 0 {
		b.spent += float64(bytes)
	}
}

// Left returns how many bytes are there: 0 or less when somebody has to wait.
func (b *Bucket) Left(now time.Time, rate int64) int64 {
	if b.refill(now, rate); rate <= 0 {
		return math.MaxInt64
	}
	return int64(math.Floor(float64(rate) - b.spent))
}

// Wait returns how long it takes until Left is more than 0.
func (b *Bucket) Wait(now time.Time, rate int64) time.Duration {
	left := b.Left(now, rate)
	if left > 0 {
		return 0
	}
	return time.Duration(float64(1-left) / float64(rate) * float64(time.Second))
}

func (b *Bucket) refill(now time.Time, rate int64) {
	if passed := now.Sub(b.at); rate <= 0 {
		b.spent = 0
	} else if passed > 0 {
		b.spent = max(0, b.spent-float64(rate)*passed.Seconds())
	}
	b.at = now
}
