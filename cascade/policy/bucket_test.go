package policy

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestBucket: a second's worth is there at first, a debt is made up for, and another rate holds at once.
func TestBucket(t *testing.T) {
	var b Bucket
	now := time.Unix(1_800_000_000, 0)
	want := func(what string, rate, left int64, wait time.Duration) {
		t.Helper()
		if l, w := b.Left(now, rate), b.Wait(now, rate); l != left || (w-wait).Abs() > time.Duration(2e9/max(rate, 1)) {
			t.Errorf("%s: %d left, a wait of %v; want %d, %v", what, l, w, left, wait)
		}
	}
	want("full", 1000, 1000, 0)
	b.Take(now, 1000, 400)
	want("some is taken", 1000, 600, 0)
	b.Take(now, 1000, 1600)
	want("more than there is", 1000, -1000, time.Second)
	want("at twice the rate", 2000, 0, 0)
	now = now.Add(500 * time.Millisecond)
	want("half a second later", 1000, -500, 500*time.Millisecond)
	now = now.Add(time.Hour)
	want("full again", 1000, 1000, 0)
	b.Take(now, 1000, 5000)
	want("without a bound", 0, math.MaxInt64, 0)
	want("with one again", 1000, 1000, 0)
}

// TestUpkeep: what upkeep owes is repaid by a quarter of the rate and by what requests leave, and
// they get the rest at once.
func TestUpkeep(t *testing.T) {
	var b Bucket
	now := time.Unix(1_800_000_000, 0)
	want := func(what string, left int64, repaid time.Duration) {
		t.Helper()
		if l, r := b.Left(now, 1000), b.Repaid(now, 1000); l != left || (r-repaid).Abs() > time.Microsecond {
			t.Errorf("%s: %d left, repaid in %v; want %d, %v", what, l, r, left, repaid)
		}
	}
	b.Owe(now, 1000, 5000)
	want("upkeep has moved much", 1000, 20*time.Second)
	b.Take(now, 1000, 2000)
	if w := b.Wait(now, 1000); w < 1334*time.Millisecond || w > 1335*time.Millisecond {
		t.Errorf("a request waits for %v, want its own debt at three quarters of the rate", w)
	}
	now = now.Add(2 * time.Second)
	want("requests have taken all", 500, 18*time.Second)
	now = now.Add(time.Second)
	want("they leave something", 1000, 16*time.Second)
	now = now.Add(4 * time.Second)
	want("they leave all", 1000, 0)
}

// TestBucketBound: who takes only when something is left takes no more than the rate, a second's
// worth and one request.
func TestBucketBound(t *testing.T) {
	const rate, largest = 1000, 3000
	var b Bucket
	rng := rand.New(rand.NewPCG(1, 2))
	start := time.Unix(1_800_000_000, 0)
	now, taken := start, int64(0)
	for range 100_000 {
		now = now.Add(time.Duration(rng.Int64N(int64(100 * time.Millisecond))))
		if bytes := rng.Int64N(largest); b.Left(now, rate) > 0 {
			b.Take(now, rate, bytes)
			taken += bytes
		}
		if most := rate*now.Sub(start).Seconds() + rate + largest; float64(taken) > most {
			t.Fatalf("%d taken after %v", taken, now.Sub(start))
		}
	}
	if least := .95 * rate * now.Sub(start).Seconds(); float64(taken) < least {
		t.Errorf("%d taken in %v, want more", taken, now.Sub(start))
	}
}
