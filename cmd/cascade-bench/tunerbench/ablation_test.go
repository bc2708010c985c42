package tunerbench

import (
	"context"
	"errors"
	"os"
	"testing"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/lustre/tuner"
)

// A small run of both: they do the same work, only one is tuned, and what each
// took is told.
func TestAblation(t *testing.T) {
	dir, steps := t.TempDir(), 0
	res, err := Ablation(context.Background(), AblationOptions{
		Dir: dir, Blocks: 100 * chainBlocks, Scale: 0.1, Rounds: 1, Tuner: tuner.Options{Window: 8192, MinOps: 1},
		Progress: func(done, total int) { steps = total - done },
	})
	if err != nil {
		t.Fatal(err)
	}
	if steps != 0 || len(res.Phases) != 4 || res.Blocks != 6400 || res.Off != tuner.Default || len(res.Changes) == 0 {
		t.Errorf("%d steps to go: %+v", steps, res)
	}
	changing := 0.0
	for i, p := range res.Phases {
		if changing += p.On.Changing; p.On.Changing >= p.On.Seconds || p.Off.Changing != 0 {
			t.Errorf("phase %d: changes took %v of %v s, and %v s of the other", i, p.On.Changing, p.On.Seconds, p.Off.Changing)
		}
		if most := [...]float64{p.Mix.Put, p.Mix.Hit, p.Mix.Range, p.Mix.Put}[i]; most < 0.9 {
			t.Errorf("phase %d, %s: mix %+v", i, p.Kind, p.Mix)
		}
		if p.Off.Setting != tuner.Default.String() || p.On.Searches != p.Off.Searches || p.On.Searches != uint64(p.Requests) {
			t.Errorf("phase %d, %s: on %+v, off %+v, of %d requests", i, p.Kind, p.On, p.Off, p.Requests)
		}
		for side, w := range map[string]Work{"on": p.On, "off": p.Off} {
			if w.Seconds <= 0 || w.CPU <= 0 || w.Written <= 0 || w.PerPut <= 0 || w.Pages <= 0 || w.Runs <= 0 {
				t.Errorf("phase %d, %s, %s: %+v", i, p.Kind, side, w)
			}
		}
		if r := p.Ratios; r.Seconds <= 0 || r.CPU <= 0 || r.Written <= 0 || r.Pages <= 0 || r.Runs <= 0 {
			t.Errorf("phase %d, %s: %+v", i, p.Kind, r)
		}
	}
	if changing == 0 {
		t.Error("changes took no time")
	}
	if res.Phases[3].On.Setting == tuner.Default.String() {
		t.Error("the tuned index has the other's shape")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
}

// TestTunerIndexCounts: what a target says that it did is what the index counts.
func TestTunerIndexCounts(t *testing.T) {
	ctx := context.Background()
	const long = 8
	x, err := openIndex(ctx, t.TempDir(), 64<<20, tuner.Default, 10, long)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if got := x.Tree(); got.Entries != 2*10*long || got.EntryBytes <= 0 {
		t.Errorf("the tree is %+v", got)
	}
	count := func() tuner.Counts {
		s := x.x.Stats()
		return tuner.Counts{Puts: s.Puts - s.Filled, Hits: s.Points, Ranges: s.Ranges, Misses: s.Absent, Scanned: s.Scanned}
	}
	for name, r := range map[string]Request{
		"one block":    {Prefix: 3, Blocks: 1, Cached: 1},
		"a chain":      {Prefix: 4, Blocks: long, Cached: long},
		"a new chain":  {Sequence: 20, Blocks: long},
		"a new branch": {Sequence: 21, Prefix: 5, Blocks: long, Cached: 3},
	} {
		before := count()
		said, err := x.Serve(ctx, r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := count().Sub(before); got != said {
			t.Errorf("%s: %+v, the index counts %+v", name, said, got)
		}
	}
	if _, err := x.Serve(ctx, Request{Prefix: 99, Blocks: 2, Cached: 2}); !errors.Is(err, kit.ErrWrong) {
		t.Errorf("a chain that is not there: %v", err)
	}
	if err := x.Retune(ctx, tuner.Setting{T: 5, K: 2}); err != nil || x.x.Stats().SizeRatio != 5 {
		t.Error(err)
	}
	if x.Cost() <= 0 {
		t.Error("all that cost nothing")
	}
}

func TestAblationRefusesOptions(t *testing.T) {
	for _, o := range []AblationOptions{{Blocks: 1}, {Rounds: -1}, {Scale: -1}, {Cache: 5}, {Phases: []string{"sleep"}}} {
		if _, err := Ablation(context.Background(), o); !errors.Is(err, kit.ErrBadOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestSumsWeighBySearches: what is counted for each search counts as often in
// the sum of phases as it was searched.
func TestSumsWeighBySearches(t *testing.T) {
	got := sums([][]Work{{
		{Seconds: 1, CPU: 2, Written: 3, Pages: 10, Runs: 4, Searches: 30}, {Seconds: 1, CPU: 1, Written: 1, Pages: 2, Runs: 8, Searches: 10},
	}})[0]
	if want := (Work{Seconds: 2, CPU: 3, Written: 4, Pages: 8, Runs: 5, Searches: 40}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
