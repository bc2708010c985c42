package tuner

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(1, math.Abs(b)) }

// TestFormulas computes the package comment by hand.
func TestFormulas(t *testing.T) {
	const p = 0.008192549468179 // of 10 bits a key
	// 64 entries on a page, 63 buffers of data: three levels of T = 4 hold just
	// that.
	tiered := Tree{Shape: Tiered, Entries: 63 << 20, EntryBytes: 64, BufferBytes: 64 << 20, FilterCost: 0.5, Sequential: 1}
	// 84 MiB in levels of 4, 16 and 64 MiB, above them runs of 2 MiB.
	pebble := Tree{Entries: 84 << 14, EntryBytes: 64, BufferBytes: 2 << 20, BaseBytes: 4 << 20, FilterCost: 0.5, Sequential: 1}
	for name, c := range map[string]struct {
		tree Tree
		s    Setting
		want Costs
	}{
		"tiered, leveling": {tiered, Setting{4, 1}, Costs{
			Put: (1 + 2*3*1.5) / 64, Hit: 1 + 2*p + 1.5, Range: 3 + 128/64.0, Miss: 3*p + 1.5}},
		"tiered, tiering": {tiered, Setting{4, 3}, Costs{
			Put: (1 + 2*3*0.75) / 64, Hit: 1 + 8*p + 4.5, Range: 9 + 128/64.0, Miss: 9*p + 4.5}},
		"pebble, one run": {pebble, Setting{4, 1}, Costs{
			Put: (1 + 2*(1+1+2*2.5)) / 64, Hit: 1 + 3*p + 2, Range: 4 + 128/64.0, Miss: 4*p + 2}},
		"pebble, four runs": {pebble, Setting{4, 4}, Costs{
			Put: (1 + 2*(1+0.25+2*2.5)) / 64, Hit: 1 + 6*p + 3.5, Range: 7 + 128/64.0, Miss: 7*p + 3.5}},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.tree.Costs(c.s, 128)
			for kind, pair := range map[string][2]float64{
				"put": {got.Put, c.want.Put}, "hit": {got.Hit, c.want.Hit}, "range": {got.Range, c.want.Range}, "miss": {got.Miss, c.want.Miss},
			} {
				if !near(pair[0], pair[1]) {
					t.Errorf("%s costs %v, want %v", kind, pair[0], pair[1])
				}
			}
		})
	}
}

// TestExactPowersMakeNoLevel: level counts step where they should.
func TestExactPowersMakeNoLevel(t *testing.T) {
	for _, ratio := range []float64{2, 3, 4, 7, 10, 16} {
		for levels := 1.0; levels < 9; levels++ {
			full := math.Pow(ratio, levels) - 1
			if a, b := levelsFor(ratio, full), levelsFor(ratio, full*1.001+0.01); a != levels || b != levels+1 {
				t.Errorf("T=%v: %v levels when %v are full, %v a little above", ratio, a, levels, b)
			}
		}
	}
}

// TestDirections are what any model of such trees must say.
func TestDirections(t *testing.T) {
	for _, shape := range []Shape{Pebble, Tiered} {
		for _, entries := range []int64{1, 1e5, 5e6, 1e8} {
			tree := Tree{Shape: shape, Entries: entries}
			for ratio := 3; ratio <= 16; ratio++ {
				for k := 1; k < ratio-1; k++ {
					a, b := tree.Costs(Setting{ratio, k}, 10), tree.Costs(Setting{ratio, k + 1}, 10)
					if b.Put >= a.Put || b.Hit <= a.Hit || b.Range <= a.Range || b.Miss <= a.Miss {
						t.Fatalf("%v, %d entries, T=%d: K=%d costs %+v, one more %+v", shape, entries, ratio, k, a, b)
					}
				}
			}
			for ratio := 2; ratio <= 16; ratio++ {
				small, large := tree.Costs(Setting{ratio, 1}, 10), Tree{Shape: shape, Entries: entries * 100}.Costs(Setting{ratio, 1}, 10)
				if large.Put < small.Put || large.Range < small.Range {
					t.Fatalf("%v, T=%d: more entries cost less", shape, ratio)
				}
			}
		}
	}
}

// TestBestOfPureWork has 62 M entries, which are 177 buffers and 44 times the
// first level of Pebble's.
func TestBestOfPureWork(t *testing.T) {
	for name, c := range map[string]struct {
		shape Shape
		mix   Mix
		want  Setting
	}{
		"tiered, puts":   {Tiered, Mix{Put: 1}, Setting{14, 13}},                 // tiering, two levels
		"tiered, misses": {Tiered, Mix{Miss: 1}, Setting{14, 1}},                 // two runs; one level takes T = 179
		"tiered, ranges": {Tiered, Mix{Range: 1, Scanned: 100}, Setting{14, 1}},  // likewise
		"pebble, puts":   {Pebble, Mix{Put: 1}, Setting{4, 20}},                  // fewest rewrites in each level
		"pebble, misses": {Pebble, Mix{Miss: 1}, Setting{44, 1}},                 // two runs
		"pebble, hits":   {Pebble, Mix{Hit: 1}, Setting{44, 1}},                  //
		"pebble, ranges": {Pebble, Mix{Range: 1, Scanned: 1000}, Setting{44, 1}}, //
	} {
		t.Run(name, func(t *testing.T) {
			tree := Tree{Shape: c.shape, Entries: 62e6}
			got, cost := tree.Best(Bounds{MaxT: 60, MaxK: 20}, c.mix)
			if got != c.want || cost != tree.Cost(got, c.mix) {
				t.Errorf("best is %v at %v, want %v; that costs %v", got, cost, c.want, tree.Cost(c.want, c.mix))
			}
		})
	}
}

// TestBestAgainstAll tries random trees and mixes against every setting.
func TestBestAgainstAll(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		tree := Tree{Shape: Shape(r.IntN(2)), Entries: 1 + r.Int64N(1<<uint(1+r.IntN(30))), Sequential: r.Float64(), FilterCost: r.Float64()}
		b := Bounds{MinT: 2 + r.IntN(5), MaxT: 7 + r.IntN(10), MaxK: 1 + r.IntN(12)}
		mix := randomMix(r)
		best, cost := tree.Best(b, mix)
		if best.T < b.MinT || best.T > b.MaxT || best.K < 1 || best.K > b.MaxK || tree.Shape == Tiered && best.K >= best.T {
			t.Fatalf("%v is out of %+v", best, b)
		}
		for ratio := b.MinT; ratio <= b.MaxT; ratio++ {
			for k := 1; k <= b.MaxK && (k < ratio || tree.Shape == Pebble); k++ {
				if c := tree.Cost(Setting{ratio, k}, mix); c < cost {
					t.Fatalf("%+v, %+v: %v costs %v, T=%d K=%d only %v", tree, mix, best, cost, ratio, k, c)
				}
			}
		}
	}
}

func randomMix(r *rand.Rand) Mix {
	v := [4]float64{}
	sum := 0.0
	for i := range v {
		v[i] = -math.Log(1 - r.Float64())
		sum += v[i]
	}
	return Mix{v[0] / sum, v[1] / sum, v[2] / sum, v[3] / sum, 200 * r.Float64()}
}

func TestShift(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	tree := Tree{Entries: 5e6}.withDefaults()
	for range 200 {
		a, b := randomMix(r), randomMix(r)
		x, y := tree.shift(Default, a, b), tree.shift(Default, b, a)
		if !near(x, y) || x < 0 || x > 1 || tree.shift(Default, a, a) != 0 {
			t.Fatalf("%+v and %+v are %v and %v apart", a, b, x, y)
		}
	}
	if got := tree.shift(Default, Mix{Put: 1}, Mix{Miss: 1}); !near(got, 1) {
		t.Errorf("puts and misses are %v apart", got)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{
		{Window: 7}, {Window: -1}, {Threshold: 1}, {Threshold: -0.1}, {MinGain: 1}, {MinOps: -1},
		{Bounds: Bounds{MinT: 1}}, {Bounds: Bounds{MinT: 9, MaxT: 8}}, {Bounds: Bounds{MaxK: -1}}, {Threshold: math.NaN()},
	} {
		if _, err := New(o, Default); !errors.Is(err, ErrBadOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, s := range []Setting{{}, {1, 1}, {4, 0}} {
		if _, err := New(Options{}, s); !errors.Is(err, ErrBadOption) {
			t.Errorf("start at %v: %v", s, err)
		}
	}
	if _, err := New(Options{}, Default); err != nil {
		t.Error(fmt.Errorf("the defaults: %w", err))
	}
}
