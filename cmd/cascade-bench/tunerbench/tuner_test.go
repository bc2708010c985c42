package tunerbench

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/lustre/tuner"
)

// TestTunerPaysOnThePapersWorkload is the ablation of SGLang-LSM §4.3, on the
// cost model.
func TestTunerPaysOnThePapersWorkload(t *testing.T) {
	res, err := Run(context.Background(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Shapes) != 2 || res.WarmEntries != 12207*512 || res.Unit != "pages" {
		t.Errorf("%d shapes, %d entries, in %s", len(res.Shapes), res.WarmEntries, res.Unit)
	}
	for _, s := range res.Shapes {
		if len(s.Stages) != 10 || len(s.Changes) == 0 || len(s.Changes) > 10 || s.Verdicts["change"] != len(s.Changes) {
			t.Errorf("%s: %d stages, %d changes, %v", s.Shape, len(s.Stages), len(s.Changes), s.Verdicts)
		}
		if c := s.Total; c.Controller >= 0.9*c.Fixed || c.Controller > 1.01*c.BestStatic || c.BestStages > c.BestStatic {
			t.Errorf("%s: %+v", s.Shape, c)
		}
		for i, st := range s.Stages {
			if st.Hit < st.ExpectedHit-0.01 || st.Hit > st.ExpectedHit+0.01 || st.BestStages > st.BestStatic || st.BestStages > st.Fixed {
				t.Errorf("%s, stage %d: %+v", s.Shape, i, st)
			}
		}
	}
	again, err := Run(context.Background(), Options{})
	if err != nil || !reflect.DeepEqual(res, again) {
		t.Errorf("a second run differs, %v", err)
	}
}

func TestBinarySearchCounts(t *testing.T) {
	for _, n := range []int{0, 1, 2, 7, 8, 512, 513} {
		bound := uint64(0) // ⌈log2(n + 1)⌉
		for 1<<bound < n+1 {
			bound++
		}
		for stored := 0; stored <= n; stored++ {
			c := binarySearch(n, stored)
			if c.Ops() > bound || stored == 0 && c.Hits > 0 || stored == n && c.Misses > 0 || stored > 0 && stored < n && (c.Hits == 0 || c.Misses == 0) {
				t.Fatalf("%d of %d: %+v, at most %d lookups", stored, n, c, bound)
			}
		}
	}
}

// brokenTarget fails when it is retuned, and says whether it was closed.
type brokenTarget struct {
	Target
	closed *int
}

var errBroken = errors.New("broken")

func (b brokenTarget) Retune(context.Context, tuner.Setting) error { return errBroken }
func (b brokenTarget) Close() error                                { *b.closed++; return nil }

func TestTunerEndsWithItsTarget(t *testing.T) {
	closed := 0
	_, err := Run(context.Background(), Options{
		Unit: "seconds", Open: func(ctx context.Context, shape tuner.Shape, s tuner.Setting, warm int64, blocks int) (Target, error) {
			m, err := openModel(ctx, shape, s, warm, blocks)
			return brokenTarget{m, &closed}, err
		},
	})
	if !errors.Is(err, errBroken) || closed != 1 {
		t.Errorf("%v, closed %d times", err, closed)
	}
}

func TestTunerChecksItsOptions(t *testing.T) {
	for _, o := range []Options{{HitRates: []float64{1.1}}, {Requests: -1}, {BlockTokens: 100, PromptTokens: 99}, {WarmTokens: 1}} {
		if _, err := Run(context.Background(), o); !errors.Is(err, kit.ErrBadOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := Run(context.Background(), Options{Tuner: tuner.Options{Window: 1}}); !errors.Is(err, tuner.ErrBadOption) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Options{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
