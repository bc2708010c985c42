package estimate

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestFastest: each run is loaded from where it is there soonest, and a level that has enough to
// do leaves the next run to another.
func TestFastest(t *testing.T) {
	const memory, remote, files = 1, 2, 4
	lines := []Line{{}, {Latency: time.Millisecond, PerByte: 10}, {Latency: 5 * time.Millisecond, PerByte: 1}}
	for name, c := range map[string]struct {
		chain []Copies
		want  []int
	}{
		"nothing":     {nil, []int{}},
		"one level":   {[]Copies{{memory, 1}, {remote, 1 << 30}, {files, 1}}, []int{0, 1, 2}},
		"latency":     {[]Copies{{remote | files, 1 << 10}}, []int{1}},
		"bandwidth":   {[]Copies{{remote | files, 1 << 20}}, []int{2}},
		"run":         {[]Copies{{remote | files, 200_000}, {remote | files, 200_000}, {remote | files, 200_000}}, []int{2, 2, 2}},
		"what is due": {[]Copies{{remote, 1 << 20}, {remote | files, 1}}, []int{1, 2}},
		"as fast":     {[]Copies{{memory | remote, 0}}, []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Fastest(c.chain, lines); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
	slow := slices.Clone(lines)
	slow[1].Queued = 1 << 20
	if got := Fastest([]Copies{{remote | files, 1}}, slow); got[0] != 2 {
		t.Errorf("of a level that has much to read: %v", got)
	}
}

// TestFastestHasACopy: no block is loaded from where it is not.
func TestFastestHasACopy(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 1000 {
		lines, chain := make([]Line, 3), make([]Copies, r.IntN(20))
		for i := range lines {
			lines[i] = Line{Latency: time.Duration(r.IntN(1000)), PerByte: r.Float64(), Queued: r.Int64N(1000)}
		}
		for i := range chain {
			chain[i] = Copies{Levels: uint8(1 + r.IntN(7)), Bytes: r.Int64N(1000)}
		}
		for i, l := range Fastest(chain, lines) {
			if chain[i].Levels&(1<<l) == 0 {
				t.Fatalf("block %d of %v is loaded from %d", i, chain, l)
			}
			if i > 0 && chain[i].Levels == chain[i-1].Levels && l != Fastest(chain, lines)[i-1] {
				t.Fatalf("a run of %v is loaded from two levels", chain)
			}
		}
	}
}

// TestPaysToAsk: others are asked where a copy of theirs would be there sooner by more than the
// question takes; seldom once they had nothing, and some minutes later as at first.
func TestPaysToAsk(t *testing.T) {
	remote := Line{Latency: 200 * time.Microsecond, PerByte: .5}
	slow, fast := Line{Latency: 10 * time.Millisecond, PerByte: 1}, Line{Latency: 300 * time.Microsecond, PerByte: .5}
	var o Odds
	pays := func(has Line, now time.Duration) bool { return Pays(has, remote, 64<<10, o.Of(now)) }
	if !pays(slow, 0) || pays(fast, 0) {
		t.Errorf("at first: slow %v, fast %v", pays(slow, 0), pays(fast, 0))
	}
	asked := 0
	for range 1000 {
		if pays(slow, 0) {
			o.Note(0, 0)
			asked++
		}
	}
	if asked > 10 {
		t.Errorf("asked %d times of 1000 for nothing", asked)
	}
	if now := 10 * time.Minute; !pays(slow, now) || o.Of(now) < .5 {
		t.Errorf("ten minutes later the odds are %v", o.Of(now))
	}
	for range 20 {
		o.Note(10*time.Minute, 1)
	}
	if got := o.Of(10 * time.Minute); got < .95 {
		t.Errorf("of those who have all the odds are %v", got)
	}
}
