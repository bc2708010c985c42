package catalogue

import (
	"context"
	"sync"
	"testing"
	"time"

	"cascadekv/lustre/tuner"
)

// TestTune: work of another kind gives the index another shape, at a moment in
// which nothing is looked up, and all is found as before.
func TestTune(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 300, 100)
	r.round()
	before := r.Stats()
	type told struct {
		d    tuner.Decision
		made bool
		err  error
	}
	events := make(chan told, 1000)
	work, stop := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		err := r.Tune(work, TuneOptions{
			Tuner: tuner.Options{Window: 64, MinOps: 1}, Every: 2 * time.Millisecond, Quiet: 100 * time.Millisecond,
			Report: func(d tuner.Decision, made bool, err error) {
				select {
				case events <- told{d, made, err}:
				default:
				}
			},
		})
		if err != nil {
			t.Error(err)
		}
	})
	defer done.Wait()
	defer stop()
	limit := time.After(time.Minute)
	for proposed := false; !proposed; {
		r.Find("model", []string{key(1)}) // look-ups alone: fewer runs
		select {
		case e := <-events:
			proposed = e.d.Verdict == tuner.Change
			if e.made {
				t.Fatalf("made while names are looked up: %v", e.d)
			}
		case <-limit:
			t.Fatal("no change is proposed")
		default:
		}
	}
	for made := false; !made; {
		select {
		case e := <-events:
			made = e.made
			if e.err != nil {
				t.Fatal(e.err)
			}
		case <-limit:
			t.Fatal("no change is made")
		}
	}
	after := r.Stats()
	if after.Retunes != 1 || after.SizeRatio == before.SizeRatio && after.Runs == before.Runs || after.Tuning == nil {
		t.Errorf("T=%d K=%d become T=%d K=%d in %d changes", before.SizeRatio, before.Runs, after.SizeRatio, after.Runs, after.Retunes)
	}
	r.wants(0, 300, data)
	if v := after.Tuning.Verdicts; v[tuner.Change] == 0 {
		t.Errorf("verdicts %v", v)
	}
}

// TestTuning: what people are told of a judgement: how many there were of each
// kind, the cost as the index is, and the best one, though no change is worth
// while.
func TestTuning(t *testing.T) {
	tree, mix := tuner.Tree{Entries: 5e6}, tuner.Mix{Hit: 0.9, Put: 0.1}
	best, cost := tree.Best(tuner.Bounds{MaxT: 12}, mix)
	if best == tuner.Default || best.T > 12 {
		t.Fatalf("the test's work is best under %v", best)
	}
	for _, v := range []tuner.Verdict{tuner.Filling, tuner.Steady, tuner.Keep} {
		d := tuner.Decision{Verdict: v, Ops: 100, From: tuner.Default, To: tuner.Default, Mix: mix}
		was := &Tuning{Verdicts: [...]uint64{tuner.Steady: 5, tuner.Change: 1}}
		got := was.judged(d, tree, tuner.Bounds{MaxT: 12})
		if got.Best != best || got.BestCost != cost || got.Last.Before != tree.Cost(tuner.Default, mix) || cost >= got.Last.Before {
			t.Errorf("%v: %+v, want %v at %v", v, got, best, cost)
		}
		want := was.Verdicts
		want[v]++
		if got.Verdicts != want {
			t.Errorf("%v: verdicts %v, want %v", v, got.Verdicts, want)
		}
	}
	idle := Tuning{}.judged(tuner.Decision{From: tuner.Default}, tree, tuner.Bounds{})
	if idle.BestCost != 0 || idle.Best != tuner.Default {
		t.Errorf("before the first operation: %+v", idle)
	}
}

// TestCounts: the tuner counts what requests ask for as what it costs, and
// nothing of what fills an empty index or keeps it.
func TestCounts(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 40, 100)
	r.round()
	count := func() tuner.Counts {
		s := r.Stats()
		return countsOf(&s.Stats)
	}
	if c := count(); c != (tuner.Counts{}) {
		t.Errorf("filling an empty index: %+v", c)
	}
	for name, c := range map[string]struct {
		keys []string
		want tuner.Counts
	}{
		"a name":    {[]string{key(5)}, tuner.Counts{Hits: 1}},
		"no name":   {[]string{"none"}, tuner.Counts{Misses: 1}},
		"a chain":   {[]string{key(3), key(4), key(5), key(6), "none", "nor this"}, tuner.Counts{Ranges: 1, Scanned: 4, Misses: 2}},
		"no chain":  {[]string{key(3), key(9)}, tuner.Counts{Hits: 2}},
		"no prefix": {[]string{"none", "nor this"}, tuner.Counts{Misses: 2}},
	} {
		before := count()
		r.Find("model", c.keys)
		if got := count().Sub(before); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	before := count()
	r.Peek("model", []string{key(1), "none"})
	if _, err := r.Withdraw(ctx, item(7, data(7), 1000).Names[0]); err != nil {
		t.Fatal(err)
	}
	r.round()
	if got := count().Sub(before); got != (tuner.Counts{Puts: 1}) {
		t.Errorf("upkeep and a withdrawal: %+v", got)
	}
}
