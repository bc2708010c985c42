package policy

import (
	"math"
	"time"
)

// Bucket bounds a rate of bytes: over any time no more are taken than the rate makes of it and
// of one second more, but for the last request: that may take more than is left, and the next
// waits until it is made up for. Upkeep moves much at once, which the requests are not to wait
// for: it owes that, and begins again when a part of the rate has repaid it. The zero value is full. Rates are in bytes per second, 0 is no bound, and
// may differ from call to call. Not safe for concurrent use.
type Bucket struct {
	spent float64 // bytes that are missing; more than the rate makes in a second: a debt
	owed  float64 // bytes of upkeep that are not repaid
	at    time.Time
}

// upkeepShare is the part of the rate that repays what upkeep owes while requests take all
// they get. What they leave does too.
const upkeepShare = 0.25

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
	share := float64(rate)
	if b.owed > 0 {
		share *= 1 - upkeepShare
	}
	return time.Duration(float64(1-left) / share * float64(time.Second))
}

// Owe counts bytes that upkeep has moved.
func (b *Bucket) Owe(now time.Time, rate, bytes int64) {
	b.refill(now, rate)
	if rate > 0 {
		b.owed += float64(bytes)
	}
}

// Repaid returns how long it takes at most until upkeep owes nothing.
func (b *Bucket) Repaid(now time.Time, rate int64) time.Duration {
	if b.refill(now, rate); b.owed == 0 {
		return 0
	}
	return time.Duration(b.owed/(float64(rate)*upkeepShare)*float64(time.Second)) + 1
}

func (b *Bucket) refill(now time.Time, rate int64) {
	if passed := now.Sub(b.at); rate <= 0 {
		b.spent, b.owed = 0, 0
	} else if passed > 0 {
		more := float64(rate) * passed.Seconds()
		repaid := min(b.owed, more*upkeepShare)
		b.owed -= repaid
		if b.spent -= more - repaid; b.spent < 0 {
			b.owed, b.spent = max(0, b.owed+b.spent), 0
		}
	}
	b.at = now
}
