package policy

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestBucket: a second's worth is there at first, a debt is made up for, at the rate of then.
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
	want("at twice the rate", 2000, -1000, 500*time.Millisecond)
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

// TestBucketLowered: of a second that was taken in part, the same part is left at a lower rate. What
// was taken beyond it stays a debt, and a higher rate gives nothing at once.
func TestBucketLowered(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	near := func(a, b, by int64) bool { return a-b <= by && b-a <= by }
	for _, c := range []struct {
		what        string
		taken, owed int64
		left        int64
		wait        time.Duration
		repaid      time.Duration
		raised      int64
	}{
		{"nothing is taken", 0, 0, 1e6, 0, 0, 1e6},
		{"a part is taken", 9e8, 0, 1e5, 0, 0, 1e5},
		{"a second is taken", 1e9, 0, 0, time.Microsecond, 0, 0},
		{"a request took more", 1e9 + 2e6, 0, -2e6, 2 * time.Second, 0, -2e6},
		{"upkeep owes a second", 0, 1e9, 1e6, 0, 4 * time.Second, 1e6},
		{"upkeep owes more", 0, 1e9 + 1e6, 1e6, 0, 8 * time.Second, 1e6},
		{"requests took all, upkeep owes", 1e9, 1e6, 0, time.Microsecond, 4 * time.Second, 0},
	} {
		var b Bucket
		b.Take(now, 1e9, c.taken)
		b.Owe(now, 1e9, c.owed)
		left, wait, repaid := b.Left(now, 1e6), b.Wait(now, 1e6), b.Repaid(now, 1e6)
		if !near(left, c.left, 1) || !near(int64(wait), int64(c.wait), 3000) || !near(int64(repaid), int64(c.repaid), 10_000) {
			t.Errorf("%s: %d left, a wait of %v, repaid in %v; want %d, %v, %v", c.what, left, wait, repaid, c.left, c.wait, c.repaid)
		}
		if left := b.Left(now, 1e9); !near(left, c.raised, 1) {
			t.Errorf("%s: %d left at the higher rate again, want %d", c.what, left, c.raised)
		}
	}
}

// TestBucketReloads: whatever the rates become, no more is taken than they make, a second's
// worth of the highest, and one request and one merge.
func TestBucketReloads(t *testing.T) {
	const largest, merge = 3000, 20_000
	rates := []int64{100, 1000, 50_000}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var b Bucket
		now, made, taken, rate := time.Unix(1_800_000_000, 0), 0.0, int64(0), rates[2]
		for range 1000 {
			passed := time.Duration(rng.Int64N(int64(100 * time.Millisecond)))
			now, made = now.Add(passed), made+float64(rate)*passed.Seconds()
			if rng.IntN(10) == 0 {
				rate = rates[rng.IntN(len(rates))]
			}
			if bytes := rng.Int64N(largest); b.Left(now, rate) > 0 {
				b.Take(now, rate, bytes)
				taken += bytes
			}
			if b.Repaid(now, rate) == 0 {
				b.Owe(now, rate, merge)
				taken += merge
			}
			if most := made + float64(rates[2]) + largest + merge; float64(taken) > most {
				t.Fatalf("%d taken, want at most %.0f", taken, most)
			}
		}
	}
}

// TestBucketLarge: no rate and no debt is too large: waits are neither negative nor 0 while there is
// something to wait for, and an hour at most.
func TestBucketLarge(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, rate := range []int64{1, 1e9, math.MaxInt64} {
		for _, bytes := range []int64{0, 1, 3e9, math.MaxInt64} {
			var b Bucket
			if left := b.Left(now, rate); left != rate {
				t.Errorf("%d left at %d", left, rate)
			}
			for range 3 {
				b.Take(now, rate, bytes)
				b.Owe(now, rate, bytes)
			}
			left, wait, repaid := b.Left(now, rate), b.Wait(now, rate), b.Repaid(now, rate)
			if wait < 0 || wait > time.Hour || (wait == 0) != (left > 0) || bytes > rate && left >= 0 {
				t.Errorf("%d of %d taken: %d left, a wait of %v", bytes, rate, left, wait)
			}
			if repaid < 0 || repaid > time.Hour || (repaid == 0) != (bytes == 0) {
				t.Errorf("%d of %d owed: repaid in %v", bytes, rate, repaid)
			}
		}
	}
}

// TestBucketBack: a clock that goes back and forth earns nothing.
func TestBucketBack(t *testing.T) {
	var b Bucket
	now := time.Unix(1_800_000_000, 0)
	b.Take(now, 1000, 1_000_000)
	b.Owe(now, 1000, 5000)
	for range 100 {
		b.Left(now.Add(-9*time.Second), 1000)
		b.Left(now.Add(-8*time.Second), 1000)
	}
	if l, r := b.Left(now, 1000), b.Repaid(now, 1000); l != -999_000 || r.Round(time.Second) != 20*time.Second {
		t.Errorf("%d left, repaid in %v", l, r)
	}
	if l := b.Left(now.Add(4*time.Second), 1000); l != -996_000 {
		t.Errorf("%d left after 4 s", l)
	}
}

// TestBucketReturn: what is given back is there again, and no more than a second's worth is.
func TestBucketReturn(t *testing.T) {
	var b Bucket
	now := time.Unix(1_800_000_000, 0)
	b.Take(now, 1000, 1500)
	b.Return(now, 1000, 600)
	if l := b.Left(now, 1000); l != 100 {
		t.Errorf("%d left", l)
	}
	b.Return(now, 1000, 5000)
	if l := b.Left(now, 1000); l != 1000 {
		t.Errorf("%d left, want a second's worth", l)
	}
	b.Return(now, 0, 5000)
	if l := b.Left(now, 1000); l != 1000 {
		t.Errorf("%d left after no bound", l)
	}
}
