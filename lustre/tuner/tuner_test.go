package tuner

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// Kinds of work, in operations out of a thousand.
var (
	writing = Counts{Puts: 985, Hits: 5, Ranges: 3, Misses: 7, Scanned: 300}
	reading = Counts{Puts: 100, Hits: 400, Ranges: 300, Misses: 200, Scanned: 30000}
	between = Counts{Puts: 800, Hits: 80, Ranges: 60, Misses: 60, Scanned: 6000}
)

// someTree counts pages as the paper does: all alike, and filters for nothing.
var someTree = Tree{Shape: Tiered, Entries: 50e6, Sequential: 1, FilterCost: 1e-9}

func newTuner(t *testing.T, o Options) *Tuner {
	t.Helper()
	tu, err := New(o, Default)
	if err != nil {
		t.Fatal(err)
	}
	return tu
}

// noisy scatters counts as independent arrivals would.
func noisy(r *rand.Rand, c Counts) Counts {
	scatter := func(n uint64) uint64 {
		return uint64(math.Max(0, math.Round(float64(n)+math.Sqrt(float64(n))*r.NormFloat64())))
	}
	return Counts{scatter(c.Puts), scatter(c.Hits), scatter(c.Ranges), scatter(c.Misses), c.Scanned}
}

// work runs the owner's loop over ops operations of one kind, with noise, and
// returns the changes that were made.
func work(t *testing.T, tu *Tuner, r *rand.Rand, tree Tree, kind Counts, ops int) (changes []Decision) {
	t.Helper()
	for ; ops > 0; ops -= int(kind.Ops()) {
		tu.Observe(noisy(r, kind))
		tu.Step(tree)
		if d, ok := tu.Pending(); ok {
			tu.Done(d, nil)
			if tu.Setting() != d.To {
				t.Fatalf("after %v the setting is %v", d, tu.Setting())
			}
			changes = append(changes, d)
		}
	}
	return changes
}

// TestPhases is appendix C of the paper: write-heavy work raises K, read-heavy
// work lowers it to leveling; each phase costs one change.
func TestPhases(t *testing.T) {
	tu, r := newTuner(t, Options{}), rand.New(rand.NewPCG(1, 1))
	var settings []Setting
	for i, kind := range []Counts{writing, reading, writing, reading} {
		changes := work(t, tu, r, someTree, kind, 1_000_000)
		if len(changes) != 1 {
			t.Fatalf("phase %d: %d changes: %v", i, len(changes), changes)
		}
		if changes[0].Ops > uint64(i)*1_000_000+3*1<<15+5000 {
			t.Errorf("phase %d: seen only after %d operations", i, changes[0].Ops)
		}
		settings = append(settings, tu.Setting())
	}
	if settings[0] != settings[2] || settings[1] != settings[3] || settings[1].K != 1 || settings[0].K <= Default.K {
		t.Errorf("settings %v", settings)
	}
}

// TestNoise: no mix, however noisy, makes a tuner change its mind once it has
// made it up.
func TestNoise(t *testing.T) {
	for _, shape := range []Shape{Pebble, Tiered} {
		for seed := range uint64(40) {
			r := rand.New(rand.NewPCG(seed, 2))
			m := randomMix(r)
			kind := Counts{uint64(m.Put * 1000), uint64(m.Hit * 1000), uint64(m.Range * 1000), uint64(m.Miss * 1000), 20000}
			tu := newTuner(t, Options{})
			if changes := work(t, tu, r, Tree{Shape: shape, Entries: 20e6}, kind, 1_000_000); len(changes) > 1 {
				t.Errorf("%v, %+v: %d changes: %v", shape, kind, len(changes), changes)
			}
		}
	}
}

// TestBetweenTwo puts the mix where two settings cost almost the same.
func TestBetweenTwo(t *testing.T) {
	tu, r := newTuner(t, Options{}), rand.New(rand.NewPCG(5, 5))
	work(t, tu, r, someTree, between, 300_000)
	before := tu.Setting()
	for i := range 200 {
		kind := between
		kind.Puts += uint64(i%2) * 60
		kind.Hits -= uint64(i%2) * 10
		if changes := work(t, tu, r, someTree, kind, 40_000); len(changes) > 0 {
			t.Fatalf("turn %d: %v", i, changes[0])
		}
	}
	if tu.Setting() != before {
		t.Error(tu.Setting())
	}
}

// TestFastAlternation: phases shorter than the window are one mix; somewhat
// longer ones are followed no more often than MinOps allows.
func TestFastAlternation(t *testing.T) {
	for name, c := range map[string]struct{ phase, most int }{
		"within the window":   {4_000, 1},
		"as long as a window": {1 << 15, 4_000_000/(4<<15) + 1},
		"two windows":         {2 << 15, 4_000_000/(4<<15) + 1},
	} {
		t.Run(name, func(t *testing.T) {
			tu, r := newTuner(t, Options{}), rand.New(rand.NewPCG(8, 8))
			changes := 0
			for i := 0; i*c.phase < 4_000_000; i++ {
				kind := writing
				if i%2 == 1 {
					kind = reading
				}
				changes += len(work(t, tu, r, someTree, kind, c.phase))
			}
			if changes > c.most {
				t.Errorf("%d changes, at most %d", changes, c.most)
			}
		})
	}
}

// TestPromises walks at random and holds every decision to what the package
// says of it.
func TestPromises(t *testing.T) {
	seen := map[Verdict]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		o := Options{Window: 800 + r.IntN(8000), Threshold: 0.05 + 0.2*r.Float64(), MinGain: 0.02 + 0.1*r.Float64(), Bounds: Bounds{MinT: 3, MaxT: 12, MaxK: 11}}
		o.MinOps = 1 + r.IntN(4*o.Window)
		tu := newTuner(t, o)
		tree := Tree{Shape: Shape(r.IntN(2)), Entries: 1 + r.Int64N(50e6)}
		last, made := uint64(0), false
		mix := randomMix(r)
		for range 600 {
			if r.IntN(30) == 0 {
				mix = randomMix(r)
			}
			tree.Entries += r.Int64N(200_000)
			n := 300 * r.Float64()
			tu.Observe(Counts{uint64(mix.Put * n), uint64(mix.Hit * n), uint64(mix.Range * n), uint64(mix.Miss * n), uint64(mix.Range * n * 50)})
			d := tu.Step(tree)
			seen[d.Verdict]++
			hold(t, o, tree, d)
			p, ok := tu.Pending()
			if !ok {
				continue
			}
			if made && d.Pending() && d.Ops-last < uint64(o.MinOps) {
				t.Fatalf("%d operations after the last change: %v", d.Ops-last, d)
			}
			if r.IntN(40) == 0 {
				err := error(nil)
				if r.IntN(4) == 0 {
					err = errors.New("busy")
				}
				was := tu.Setting()
				tu.Done(p, err)
				if want := map[bool]Setting{true: p.To, false: was}[err == nil]; tu.Setting() != want {
					t.Fatalf("%v after Done(%v, %v)", tu.Setting(), p, err)
				}
				last, made = d.Ops, true
			}
		}
	}
	for v := Filling; v <= Change; v++ {
		if seen[v] == 0 {
			t.Errorf("no decision was %q: %v", v, seen)
		}
	}
}

func hold(t *testing.T, o Options, tree Tree, d Decision) {
	t.Helper()
	sum := d.Mix.Put + d.Mix.Hit + d.Mix.Range + d.Mix.Miss
	if d.Ops > 0 && !near(sum, 1) || d.Shift < 0 || d.Shift > 1 {
		t.Fatalf("shares of %v, shift %v: %v", sum, d.Shift, d)
	}
	if d.Verdict != Filling && (!near(d.Before, tree.Cost(d.From, d.Mix)) || !near(d.After, tree.Cost(d.To, d.Mix))) {
		t.Fatalf("costs are not those of the settings: %v", d)
	}
	switch d.Verdict {
	case Change:
		if d.To == d.From || d.Gain() < o.MinGain-1e-9 || d.Serial == 0 {
			t.Fatalf("a change of no worth: %v", d)
		}
		if d.To.T < o.Bounds.MinT || d.To.T > o.Bounds.MaxT || d.To.K < 1 || d.To.K > o.Bounds.MaxK || tree.Shape == Tiered && d.To.K >= d.To.T {
			t.Fatalf("out of bounds: %v", d)
		}
	case TooSoon:
	case Keep: // may name what is pending
	default:
		if d.To != d.From {
			t.Fatalf("names another setting: %v", d)
		}
	}
}

// TestSameInputSameOutput runs one story twice.
func TestSameInputSameOutput(t *testing.T) {
	story := func() (all []Decision) {
		tu, r := newTuner(t, Options{Window: 4096}), rand.New(rand.NewPCG(9, 9))
		for i := range 400 {
			tu.Observe(noisy(r, []Counts{writing, reading, between}[i/50%3]))
			all = append(all, tu.Step(someTree))
			if d, ok := tu.Pending(); ok && i%7 == 0 {
				tu.Done(d, nil)
			}
		}
		return all
	}
	if a, b := story(), story(); !reflect.DeepEqual(a, b) {
		t.Error("two runs differ")
	}
}

// TestPendingIsTheCallersToMake follows one change through delay, withdrawal,
// refusal and lateness.
func TestPendingIsTheCallersToMake(t *testing.T) {
	tu := newTuner(t, Options{Window: 8000})
	feed := func(kind Counts, windows int) (last Decision) {
		for range windows * 8 {
			tu.Observe(kind)
			if d := tu.Step(someTree); d.Verdict != Steady {
				last = d
			}
		}
		return last
	}
	feed(writing, 2)
	first, ok := tu.Pending()
	if !ok || tu.Setting() != Default {
		t.Fatalf("nothing is pending; the setting is %v", tu.Setting())
	}
	// Nobody makes it, and nothing else comes of it.
	feed(writing, 20)
	if p, ok := tu.Pending(); !ok || p != first {
		t.Fatalf("it became %v", p)
	}
	// The work turns to where the index is best as it is.
	quiet := Counts{Puts: 930, Hits: 20, Ranges: 20, Misses: 30, Scanned: 1000}
	if best, _ := someTree.Best(Options{}.withDefaults().Bounds, Mix{Put: .93, Hit: .02, Range: .02, Miss: .03, Scanned: 50}); best.K >= first.To.K {
		t.Fatalf("the test's work is best under %v", best)
	}
	d := feed(quiet, 4)
	p, still := tu.Pending()
	if d.Verdict != Withdrawn && !(still && p.To != first.To) {
		t.Fatalf("%v, pending %v", d, still)
	}
	// Made too late: the index has it nevertheless.
	tu.Done(first, nil)
	if tu.Setting() != first.To {
		t.Errorf("the setting is %v, the index has %v", tu.Setting(), first.To)
	}
	feed(reading, 6)
	p, ok = tu.Pending()
	if !ok {
		t.Fatal("nothing is pending after a change of work")
	}
	// Refused: not asked again at once, but asked again.
	tu.Done(p, errors.New("the index is busy"))
	if _, ok := tu.Pending(); ok || tu.Setting() == p.To {
		t.Error("a refused change is pending or made")
	}
	if d := feed(reading, 3); d.Verdict != TooSoon {
		t.Errorf("right after a refusal: %v", d)
	}
	feed(reading, 2)
	if again, ok := tu.Pending(); !ok || again.To != p.To || again.Serial <= p.Serial {
		t.Errorf("not proposed again: %v, %v", again, ok)
	}
	tu.Done(Decision{Verdict: Keep, To: Setting{99, 9}}, nil)
	if tu.Setting().T == 99 {
		t.Error("a decision without a change was taken for one")
	}
}

// TestGrowthIsJudged: at first, when the entries doubled or halved, and when
// 16 MiB · (10 − 1) are full and the second level of T = 10 begins.
func TestGrowthIsJudged(t *testing.T) {
	tu := newTuner(t, Options{Window: 8000})
	for _, c := range []struct {
		entries int64
		judged  bool
	}{
		{1e6, true}, {1.9e6, false}, {2e6, true}, {3.1e6, false}, {3.2e6, true}, {6.3e6, false}, {6.5e6, true}, {3.3e6, false}, {3.2e6, true},
	} {
		tree, judged := someTree, false
		tree.Entries = c.entries
		for range 20 {
			tu.Observe(between)
			v := tu.Step(tree).Verdict
			judged = judged || v == Keep || v == Change || v == Withdrawn
		}
		if judged != c.judged {
			t.Errorf("%d entries: judged: %v, want %v", c.entries, judged, c.judged)
		}
	}
}

func TestWindow(t *testing.T) {
	const size = 8000
	r := rand.New(rand.NewPCG(4, 4))
	whole, parts := newWindow(size), newWindow(size)
	for range 50 {
		c := noisy(r, writing)
		whole.add(c)
		for _, one := range []Counts{{Puts: c.Puts}, {Hits: c.Hits}, {Ranges: c.Ranges, Scanned: c.Scanned}, {Misses: c.Misses}} {
			parts.add(one)
		}
	}
	a, b := whole.mix(buckets), parts.mix(buckets)
	if math.Abs(a.Put-b.Put) > 0.02 || math.Abs(a.Scanned-b.Scanned) > 20 {
		t.Errorf("all at once %+v, one by one %+v", a, b)
	}
	// Old operations are forgotten: a window later nothing of them counts.
	whole.add(Counts{Misses: size})
	if m := whole.mix(buckets); !near(m.Miss, 1) {
		t.Errorf("%+v after a window of misses", m)
	}
	// A flood counts as a window, and is gone after another.
	whole.add(Counts{Puts: 1 << 60})
	whole.add(Counts{Hits: size})
	if m := whole.mix(buckets); !near(m.Hit, 1) {
		t.Errorf("%+v after a flood and a window of hits", m)
	}
	if m := newWindow(size).mix(buckets); m != (Mix{}) {
		t.Errorf("an empty window has %+v", m)
	}
	if w := newWindow(size); w.full() {
		t.Error("an empty window is full")
	}
}

func TestCounts(t *testing.T) {
	a, b := Counts{1, 2, 3, 4, 5}, Counts{11, 22, 33, 44, 55}
	if got := b.Sub(a); got != (Counts{10, 20, 30, 40, 50}) || got.Ops() != 100 {
		t.Error(got, got.Ops())
	}
}

func TestDecisionsExplainThemselves(t *testing.T) {
	tu := newTuner(t, Options{Window: 8000})
	for range 20 {
		tu.Observe(writing)
		tu.Step(someTree)
	}
	d, ok := tu.Pending()
	if !ok {
		t.Fatal("nothing is pending")
	}
	for _, want := range []string{"change", Default.String(), d.To.String(), "put 98.5 %", "50000000 entries", fmt.Sprintf("%.0f %% less", 100*d.Gain())} {
		if !strings.Contains(d.String(), want) {
			t.Errorf("no %q in %q", want, d)
		}
	}
	text, err := json.Marshal(d)
	if err != nil || !strings.Contains(string(text), `"verdict":"change"`) || !strings.Contains(string(text), `"from":{"t":10,"k":4}`) {
		t.Errorf("%s, %v", text, err)
	}
	if Verdict(99).String() != "verdict 99" || (Decision{}).Gain() != 0 {
		t.Error("odd values are not named")
	}
}
