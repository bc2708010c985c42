package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"cascadekv/internal/trace"
)

// three requests: the second repeats the first and adds a block, the third
// shares one block and adds one.
var three = []trace.Request{
	{InputTokens: 1000, Hashes: []uint64{1, 2}},
	{InputTokens: 1124, Hashes: []uint64{1, 2, 3}},
	{InputTokens: 600, Hashes: []uint64{1, 9}},
}

func listOptions(t *testing.T, f *fake, reqs []trace.Request) Options {
	closed := 0
	o := Options{
		Trace:      func() (trace.Source, error) { return &list{left: reqs, end: io.EOF, closed: &closed}, nil },
		NewTarget:  func(context.Context, string) (Target, error) { return f, nil },
		BlockBytes: f.blockSize,
	}
	t.Cleanup(func() {
		if closed == 0 || f.closed != closed {
			t.Errorf("trace closed %d times, target %d", closed, f.closed)
		}
	})
	return o
}

func TestRunCounts(t *testing.T) {
	o := listOptions(t, newFake(100, 2), three)
	o.Name = "three"
	results, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	r := results[0]
	want := Result{
		Trace: "three", Policy: "fake", Requests: 3, Blocks: 7, UniqueBlocks: 4, Tokens: 2724,
		HitBlocks: 3, HitTokens: 1024 + 512, HitRatioBlocks: 3. / 7, HitRatioTokens: 1536. / 2724, UnlimitedHitRatio: 3. / 7,
		DedupRatio: 7. / 4, StoreDedupRatio: 2, BytesReferenced: 800, BytesStored: 400, PutBlocks: 4,
		Tiers:     map[string]TierResult{"fast": {2, 2. / 7, 200}, "slow": {1, 1. / 7, 100}},
		TierOrder: []string{"fast", "slow"}, CapacityBytes: 200, BlockBytes: 100, Workers: 1,
		Series: []Point{{1, 2, map[string]int64{}}, {2, 3, map[string]int64{"fast": 2}}, {3, 2, map[string]int64{"slow": 1}}},
	}
	if p, g, u := r.ProbeUS.Count, r.GetUS.Count, r.PutUS.Count; p != 3 || g != 2 || u != 3 {
		t.Errorf("timed %d probes, %d gets, %d puts, want 3, 2, 3", p, g, u)
	}
	if r.Seconds <= 0 || r.GBps.Get <= 0 || r.GBps.Put <= 0 {
		t.Errorf("no time or rates: %v, %+v", r.Seconds, r.GBps)
	}
	r.ProbeUS, r.GetUS, r.PutUS, r.Seconds, r.GBps = Latency{}, Latency{}, Latency{}, 0, Rates{}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got  %+v\nwant %+v", r, want)
	}
}

func TestRunSeesWrongBytes(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(key string, data []byte) []byte
		want   int64
	}{
		"none":      {func(_ string, d []byte) []byte { return d }, 0},
		"one bit":   {func(_ string, d []byte) []byte { d[50] ^= 1; return d }, 3},
		"cut short": {func(_ string, d []byte) []byte { return d[:90] }, 30},
		"too long":  {func(_ string, d []byte) []byte { return append(d, 1, 2) }, 6},
		"nothing":   {func(string, []byte) []byte { return nil }, 300},
		"other block": {func(_ string, d []byte) []byte {
			trace.Fill(d, 77)
			return d
		}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(100, 0)
			f.damage = c.damage
			results, err := Run(t.Context(), listOptions(t, f, three))
			if err != nil {
				t.Fatal(err)
			}
			if got := results[0].WrongBytes; got != c.want && (c.want >= 0 || got < 280) {
				t.Errorf("%d wrong bytes, want %d", got, c.want)
			}
		})
	}
}

// What a probe found may be gone at the get: it is a miss then, and put again.
func TestRunTakesALostHitForAMiss(t *testing.T) {
	f := newFake(100, 0)
	f.drop = appendKeys(nil, []uint64{2})[0]
	results, err := Run(t.Context(), listOptions(t, f, three))
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; r.HitBlocks != 2 || r.PutBlocks != 5 || r.HitTokens != 1024 {
		t.Errorf("%d hits with %d tokens, %d puts; want 2 with 1024, 5", r.HitBlocks, r.HitTokens, r.PutBlocks)
	}
}

func TestRunCountsRejected(t *testing.T) {
	f := newFake(100, 0)
	f.limit = 3
	results, err := Run(t.Context(), listOptions(t, f, three))
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; r.PutBlocks != 3 || r.RejectedBlocks != 1 {
		t.Errorf("%d stored, %d rejected, want 3 and 1", r.PutBlocks, r.RejectedBlocks)
	}
}

func TestRunLimitsRequests(t *testing.T) {
	o := listOptions(t, newFake(100, 0), three)
	o.Requests = 2
	results, err := Run(t.Context(), o)
	if err != nil || results[0].Requests != 2 || results[0].UniqueBlocks != 3 {
		t.Errorf("got %+v, %v, want 2 requests of 3 blocks", results, err)
	}
}

func TestRunPolicies(t *testing.T) {
	var asked []string
	var last []Progress
	closed := 0
	o := Options{
		Policies: []string{"a", "b"}, BlockBytes: 100,
		Trace: func() (trace.Source, error) { return &list{left: three, end: io.EOF, closed: &closed}, nil },
		NewTarget: func(_ context.Context, policy string) (Target, error) {
			f := newFake(100, 0)
			f.policy = ""
			asked = append(asked, policy)
			return f, nil
		},
	}
	o.Progress = func(p Progress) { last = append(last, p) }
	results, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(asked) != "[a b]" || results[0].Policy != "a" || results[1].Policy != "b" {
		t.Errorf("asked for %v, got %q and %q", asked, results[0].Policy, results[1].Policy)
	}
	if results[0].HitBlocks != results[1].HitBlocks {
		t.Errorf("runs differ: %d and %d hits", results[0].HitBlocks, results[1].HitBlocks)
	}
	if want := (Progress{Policy: "b", Requests: 3, Blocks: 7, HitBlocks: 3, ReachableBlocks: 3}); len(last) != 6 || last[5] != want {
		t.Errorf("%d progress calls, the last %+v, want 6, %+v", len(last), last[len(last)-1], want)
	}
}

// With several workers the hits depend on timing, what was asked for does not.
func TestRunWorkers(t *testing.T) {
	s, err := trace.NewSynth(trace.SynthOptions{Requests: 300})
	if err != nil {
		t.Fatal(err)
	}
	var reqs []trace.Request
	for {
		var req trace.Request
		if s.Next(&req) == io.EOF {
			break
		}
		reqs = append(reqs, req)
	}
	o := listOptions(t, newFake(64, 100), reqs)
	o.Workers = 4
	o.Policies = []string{"several"}
	results, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	info, err := trace.Summarize(&list{left: reqs, end: io.EOF}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := results[0]
	if r.Requests != 300 || r.Blocks != info.Blocks || r.UniqueBlocks != info.UniqueBlocks || r.UnlimitedHitRatio != info.HitRatioBlocks ||
		r.WrongBytes != 0 || r.HitBlocks == 0 || r.HitBlocks > info.HitBlocks {
		t.Errorf("got %+v\nof a trace with %+v", r, info)
	}
}

// One worker without a capacity limit reaches exactly what the trace allows.
func TestRunReachesTheLimit(t *testing.T) {
	newSource := func() (trace.Source, error) { return trace.NewSynth(trace.SynthOptions{Requests: 200}) }
	results, err := Run(t.Context(), Options{
		Trace: newSource, BlockBytes: 64,
		NewTarget: func(context.Context, string) (Target, error) { return newFake(64, 1), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	s, _ := newSource()
	info, err := trace.Summarize(s, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; r.HitBlocks != info.HitBlocks || r.HitTokens != info.HitTokens || r.HitRatioBlocks != r.UnlimitedHitRatio {
		t.Errorf("%d blocks, %d tokens hit, want %d and %d", r.HitBlocks, r.HitTokens, info.HitBlocks, info.HitTokens)
	}
}

func TestRunErrors(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		change func(*Options, *fake)
		want   error
	}{
		"put fails":   {func(_ *Options, f *fake) { f.fail = broken }, broken},
		"no trace":    {func(o *Options, _ *fake) { o.Trace = nil }, ErrBadOptions},
		"huge block":  {func(o *Options, _ *fake) { o.BlockBytes = 1 << 40 }, ErrBadOptions},
		"trace fails": {func(o *Options, _ *fake) { o.Trace = func() (trace.Source, error) { return nil, broken } }, broken},
		"target fails": {func(o *Options, _ *fake) {
			o.NewTarget = func(context.Context, string) (Target, error) { return nil, broken }
		}, broken},
		"line is wrong": {func(o *Options, _ *fake) {
			o.Trace = func() (trace.Source, error) {
				return trace.NewReader(strings.NewReader("{}"), "f", trace.ReaderOptions{})
			}
		}, trace.ErrBadTrace},
		"empty trace": {func(o *Options, _ *fake) {
			o.Trace = func() (trace.Source, error) {
				return trace.NewReader(strings.NewReader(""), "f", trace.ReaderOptions{})
			}
		}, ErrNoTrace},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(100, 0)
			closed := 0
			o := Options{
				Trace:      func() (trace.Source, error) { return &list{left: three, end: io.EOF, closed: &closed}, nil },
				NewTarget:  func(context.Context, string) (Target, error) { return f, nil },
				BlockBytes: 100, Workers: 3,
			}
			c.change(&o, f)
			if results, err := Run(t.Context(), o); !errors.Is(err, c.want) || len(results) != 0 {
				t.Errorf("got %d results and %v, want %v", len(results), err, c.want)
			}
			if f.open != 0 {
				t.Errorf("%d sessions left open", f.open)
			}
		})
	}
}

// A cancelled run ends with its context's error, and its target is closed.
func TestRunIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := listOptions(t, newFake(100, 0), three)
	o.Progress = func(p Progress) {
		if p.Requests == 2 {
			cancel()
		}
	}
	if results, err := Run(ctx, o); !errors.Is(err, context.Canceled) || len(results) != 0 {
		t.Errorf("got %d results and %v, want context.Canceled", len(results), err)
	}
}

func TestRunKeepsEarlierResults(t *testing.T) {
	broken := errors.New("broken")
	o := listOptions(t, newFake(100, 0), three)
	o.Policies = []string{"good", "bad"}
	ok := o.NewTarget
	o.NewTarget = func(ctx context.Context, policy string) (Target, error) {
		if policy == "bad" {
			return nil, broken
		}
		return ok(ctx, policy)
	}
	trips := 0
	open := o.Trace
	o.Trace = func() (trace.Source, error) {
		if trips++; trips == 2 {
			return trace.NewSynth(trace.SynthOptions{})
		}
		return open()
	}
	if results, err := Run(t.Context(), o); !errors.Is(err, broken) || len(results) != 1 {
		t.Errorf("got %d results and %v, want 1 and the error", len(results), err)
	}
}
