package policy

import (
	"math"
	"time"
)

// Bucket bounds a rate of bytes: over any time no more are taken than the rate makes of it and
// of one second more, but for the last request: that may take more than is left, and the next
// waits until it is made up for. Upkeep moves much at once, which the requests are not to wait
// for: it owes that, and begins again when a part of the rate has repaid it. The zero value is
// full. Rates are in bytes per second, 0 is no bound, and may differ from call to call. Times may
// go back: no interval counts twice. Not safe for concurrent use.
type Bucket struct {
	rate int64     // of the last call; 0: no bound
	left float64   // bytes that may be taken, at most what the rate makes in a second; below 0: a debt
	owed float64   // bytes of upkeep that are not repaid
	at   time.Time // the latest of the calls
}

const (
	// upkeepShare is the part of the rate that repays what upkeep owes while requests take all
	// they get. What they leave does too.
	upkeepShare = 0.25
	// longestWait bounds what Wait and Repaid return.
	longestWait = time.Hour
)

// Take takes bytes, whether they are there or not.
func (b *Bucket) Take(now time.Time, rate, bytes int64) {
	b.refill(now, rate)
	if rate > 0 {
		b.left -= float64(bytes)
	}
}

// Return gives back bytes that were taken, and not moved.
func (b *Bucket) Return(now time.Time, rate, bytes int64) {
	b.refill(now, rate)
	b.left = min(float64(b.rate), b.left+float64(bytes))
}

// Left returns how many bytes are there: 0 or less when somebody has to wait.
func (b *Bucket) Left(now time.Time, rate int64) int64 {
	b.refill(now, rate)
	switch {
	case rate <= 0 || b.left >= math.MaxInt64:
		return math.MaxInt64
	case b.left <= math.MinInt64:
		return math.MinInt64
	}
	return int64(math.Floor(b.left))
}

// Wait returns how long it takes until Left is more than 0, an hour at most; 0 only if it is.
func (b *Bucket) Wait(now time.Time, rate int64) time.Duration {
	if b.Left(now, rate) > 0 {
		return 0
	}
	share := float64(rate)
	if b.owed > 0 {
		share *= 1 - upkeepShare
	}
	return toWait((1 - math.Floor(b.left)) / share)
}

// Owe counts bytes that upkeep has moved.
func (b *Bucket) Owe(now time.Time, rate, bytes int64) {
	b.refill(now, rate)
	if rate > 0 {
		b.owed += float64(bytes)
	}
}

// Repaid returns how long it takes at most until upkeep owes nothing, an hour at most; 0 only if
// it owes nothing.
func (b *Bucket) Repaid(now time.Time, rate int64) time.Duration {
	if b.refill(now, rate); b.owed == 0 {
		return 0
	}
	return toWait(b.owed / (float64(rate) * upkeepShare))
}

// toWait converts seconds, more than 0, to a wait that is no shorter, but for its bound.
func toWait(seconds float64) time.Duration {
	if seconds >= longestWait.Seconds() {
		return longestWait
	}
	return time.Duration(seconds*float64(time.Second)) + 1
}

func (b *Bucket) refill(now time.Time, rate int64) {
	passed := now.Sub(b.at)
	if passed > 0 {
		b.at = now
	}
	switch {
	case rate <= 0:
		*b = Bucket{at: b.at}
		return
	case b.rate == 0:
		b.left = float64(rate)
	case passed > 0:
		b.earn(float64(min(rate, b.rate)) * passed.Seconds()) // the rate may have changed right after the last call
	}
	if rate < b.rate && b.left > 0 {
		b.scale(float64(rate) / float64(b.rate))
	}
	b.rate = rate
}

// earn repays what upkeep owes with its share of more, and with what requests leave of the rest.
func (b *Bucket) earn(more float64) {
	repaid := min(b.owed, more*upkeepShare)
	b.owed -= repaid
	b.left += more - repaid
	if over := b.left - float64(b.rate); over > 0 {
		b.left -= over
		b.owed = max(0, b.owed-over)
	}
}

// scale turns what was taken of a second into the same part of a second at a lower rate, by
// their ratio: what upkeep owes counts as far as requests left room for it in that second.
// Debts beyond the second stay as they are, as what a request took is moved already; and a
// higher rate adds nothing at once: else each reload would be worth a second.
func (b *Bucket) scale(ratio float64) {
	b.owed -= min(b.owed, b.left) * (1 - ratio)
	b.left *= ratio
}
