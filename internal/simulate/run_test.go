package simulate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/internal/testing/tracetest"
	"cascadekv/internal/trace"
)

// published are hit ratios of LRU and MIN that another simulator found, by capacity.
var published = []struct {
	trace    string
	lru, min []float64
}{
	{"mooncake_conversation_trace",
		[]float64{.0525, .0793, .1958, .2789, .3453, .3604}, []float64{.2464, .3142, .3664, .3664, .3664, .3664}},
	{"mooncake_synthetic_trace",
		[]float64{.0381, .0778, .1566, .2623, .3931, .5451}, []float64{.1854, .2613, .3956, .5063, .6080, .6396}},
	{"agentic_synthetic_7", []float64{.4032, .6582, .9260, .9286, .9298, .9317}, nil},
	{"shared_prefix_synthetic", []float64{.0305, .0597, .1546, .3006, .5674, .8481}, nil},
}

var shares = []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.4}

func TestPublishedFigures(t *testing.T) {
	for _, want := range published {
		t.Run(want.trace, func(t *testing.T) {
			in, err := trace.Open(tracetest.Public(t, want.trace+".jsonl.gz"), trace.ReaderOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			r, err := Run(t.Context(), Options{Trace: in, Capacities: shares})
			if err != nil {
				t.Fatal(err)
			}
			for name, figures := range map[string][]float64{policy.LRU: want.lru, Min: want.min} {
				for i, figure := range figures {
					if got := r.Policies[name][i]; math.Abs(got-figure) > 0.00005+1e-9 {
						t.Errorf("%s at %g: %.5f, want %.4f", name, shares[i], got, figure)
					}
				}
			}
			for i, most := range r.Policies[Min] {
				if r.Policies[policy.LRU][i] > most || most > r.UnlimitedHitRatio {
					t.Errorf("at %g: LRU %v, MIN %v, unlimited %v", shares[i], r.Policies[policy.LRU][i], most, r.UnlimitedHitRatio)
				}
			}
		})
	}
}

func TestRunAgreesWithTiers(t *testing.T) {
	requests := chains(7, 200, 3000)
	s := spoolOf(t, requests)
	done := 0
	o := Options{Trace: &list{requests: requests}, Policies: Policies(), Capacities: []float64{0.5, 0.1, 1}, Workers: 3,
		Progress: func(n, total int) {
			if n < done || n > total || total != len(requests)*3*(len(Policies())+1) {
				t.Errorf("progress: %d after %d, of %d", n, done, total)
			}
			done = n
		}}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(requests) * 3 * (len(Policies()) + 1); done != want {
		t.Errorf("progress ends at %d of %d", done, want)
	}
	if r.Requests != len(requests) || r.UniqueBlocks != s.unique || r.Blocks != s.references || r.Order[0] != policy.LRU || r.Order[len(r.Order)-1] != Min {
		t.Errorf("%+v", r)
	}
	for _, name := range r.Order {
		for i, share := range o.Capacities {
			capacity := int(share * float64(s.unique))
			under := simulated(newMinimum(capacity, s.unique))
			if name != Min {
				under = policyTier(t, name, capacity, s.unique)
			}
			hits := drive(t, s, under, func(*request) {})
			if want := float64(hits) / float64(s.references); r.Policies[name][i] != want {
				t.Errorf("%s at %g: %v, want %v", name, share, r.Policies[name][i], want)
			}
			if share == 1 && r.Policies[name][i] != r.UnlimitedHitRatio {
				t.Errorf("%s with room for all hits %v, unlimited %v", name, r.Policies[name][i], r.UnlimitedHitRatio)
			}
		}
		if r.ReferencesPerSecond[name] <= 0 {
			t.Errorf("%s: %v references per second", name, r.ReferencesPerSecond[name])
		}
	}
	// LRU is beside itself as it is.
	if c := r.AgainstLRU[policy.LRU]; math.Abs(c.HitsOverLRU-1) > 1e-12 || c.GapClosed != 0 || math.Abs(c.MeanCacheForLRUHits-1) > 1e-12 {
		t.Errorf("LRU beside LRU: %+v", c)
	}
	if c := r.AgainstLRU[Min]; math.Abs(c.GapClosed-1) > 1e-12 || c.MeanCacheForLRUHits >= 1 || c.HitsOverLRU <= 1 {
		t.Errorf("MIN beside LRU: %+v", c)
	}
}

// TestHintsAreWorthWhatTheyAre: on a trace with pauses and marks of shared prompts hints bring hits, the
// fewer the more of them are wrong; where all say nothing, they cost little.
func TestHintsAreWorthWhatTheyAre(t *testing.T) {
	hits := func(hints bool, wrong float64) float64 {
		src, err := trace.NewSynth(trace.SynthOptions{Requests: 5000, Hints: true})
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(t.Context(), Options{Trace: src, Policies: []string{policy.Prefix}, Capacities: []float64{0.04}, Hints: hints, WrongHints: wrong})
		if err != nil {
			t.Fatal(err)
		}
		return r.Policies[policy.Prefix][0]
	}
	none, right, half, wrong := hits(false, 0), hits(true, 0), hits(true, 0.5), hits(true, 1)
	t.Logf("hits without hints %.4f, with %.4f, half of them wrong %.4f, all %.4f", none, right, half, wrong)
	if right < none+0.06 || half < none || half > right || wrong < none-0.02 || wrong > half {
		t.Error("hints are not worth what they should be")
	}
}

func TestRunReportsErrors(t *testing.T) {
	requests := chains(1, 10, 10)
	damaged := errors.New("damaged")
	good := func() Options {
		return Options{Trace: &list{requests: requests}, Capacities: []float64{0.1}, Dir: t.TempDir()}
	}
	for name, tc := range map[string]struct {
		change func(*Options)
		want   error
	}{
		"no trace":         {func(o *Options) { o.Trace = nil }, ErrBadOptions},
		"no capacity":      {func(o *Options) { o.Capacities = nil }, ErrBadOptions},
		"capacity 0":       {func(o *Options) { o.Capacities = []float64{0.1, 0} }, ErrBadOptions},
		"capacity NaN":     {func(o *Options) { o.Capacities = []float64{math.NaN()} }, ErrBadOptions},
		"capacity of none": {func(o *Options) { o.Capacities = []float64{1e-320} }, ErrBadOptions},
		"hardly a rate":    {func(o *Options) { m := DefaultTTFTModel; m.PrefillTokensPerSecond = 1e-300; o.TTFT = &m }, ErrBadOptions},
		"endless rate":     {func(o *Options) { m := DefaultTTFTModel; m.PrefillTokensPerSecond = math.Inf(1); o.TTFT = &m }, ErrBadOptions},
		"unknown policy":   {func(o *Options) { o.Policies = []string{"fastest"} }, ErrBadOptions},
		"negative blocks":  {func(o *Options) { o.BlockTokens = -1 }, ErrBadOptions},
		"wrong hints":      {func(o *Options) { o.Hints, o.WrongHints = true, 1.1 }, ErrBadOptions},
		"wrong, none":      {func(o *Options) { o.WrongHints = 0.1 }, ErrBadOptions},
		"no prefill rate":  {func(o *Options) { o.TTFT = &TTFTModel{} }, ErrBadOptions},
		"nothing asked":    {func(o *Options) { o.Trace = &list{} }, ErrNoBlocks},
		"damaged trace":    {func(o *Options) { o.Trace = failing{damaged} }, damaged},
		"nothing is wrong": {func(*Options) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := good()
			tc.change(&o)
			if _, err := Run(t.Context(), o); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	o := good()
	o.Progress = func(int, int) { cancel(damaged) }
	o.Capacities, o.Workers = []float64{0.1, 0.2, 0.3}, 1
	if _, err := Run(ctx, o); !errors.Is(err, damaged) {
		t.Errorf("cancelled: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Next(*trace.Request) error { return f.err }

// TestMemoryIsByDistinctBlocks, not by references: a trace that is a hundred times as long
// takes no more.
func TestMemoryIsByDistinctBlocks(t *testing.T) {
	heap := func(times int) (most uint64) {
		o := Options{Trace: &repeated{list: list{requests: chains(1, 500, 2000)}, left: times}, Capacities: []float64{0.1, 0.5}, Workers: 2}
		calls := 0
		o.Progress = func(int, int) {
			if calls++; calls%16 == 1 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}
		if _, err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		return most
	}
	short, long := heap(1), heap(100)
	t.Logf("%d KiB and %d KiB", short>>10, long>>10)
	if long > short+short/2+4<<20 {
		t.Errorf("%d KiB for a trace, %d KiB for a hundred times of it", short>>10, long>>10)
	}
}

// repeated is a trace that is repeated.
type repeated struct {
	list
	left int
}

func (r *repeated) Next(to *trace.Request) error {
	if r.at == len(r.requests) && r.left > 1 {
		r.at, r.left = 0, r.left-1
	}
	return r.list.Next(to)
}

func TestRunReadsAsManyAsAsked(t *testing.T) {
	r, err := Run(t.Context(), Options{Trace: &list{requests: chains(1, 10, 10)}, Capacities: []float64{1}, Requests: 4})
	if err != nil || r.Requests != 4 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A trace may pause for longer than the policies' ticks count.
func TestRunOverYears(t *testing.T) {
	requests := chains(1, 20, 30)
	for i := range requests {
		if requests[i].Timestamp = 0; i >= 10 {
			requests[i].Timestamp = 72_057_594_022
		}
	}
	if r, err := Run(t.Context(), Options{Trace: &list{requests: requests}, Policies: policy.AllNames(), Capacities: []float64{0.2, 1}}); err != nil || r.Requests != 30 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestCacheForLRUHits(t *testing.T) {
	r := Result{Capacities: []float64{0.1, 0.2, 0.4}, UnlimitedHitRatio: 0.8, Policies: map[string][]float64{
		policy.LRU: {0.1, 0.3, 0.5}, "better": {0.2, 0.4, 0.6}, "worse": {0.05, 0.2, 0.44}, Min: {0.3, 0.6, 0.8},
	}}
	for name, want := range map[string][]float64{
		policy.LRU: {1, 1, 1},
		"better":   {0.5, 0.75, 0.75},             // half of 0.1; between 0.1 and 0.2; between 0.2 and 0.4
		"worse":    {4. / 3, 17. / 12, 0.5 / 0.4}, // the last beyond 0.4, towards all blocks
		Min:        {1. / 3, 0.5, 1. / 6 / 0.4},   // from no cache; at 0.1; between 0.1 and 0.2
	} {
		got := r.compare(r.Policies[name]).CacheForLRUHits
		if !slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	r.Policies[policy.LRU] = []float64{0, 0.3, 0.5} // where LRU has no hits there is nothing to compare
	if c := r.compare(r.Policies["better"]); c.CacheForLRUHits[0] != 0 || math.Abs(c.MeanCacheForLRUHits-0.75) > 1e-9 {
		t.Errorf("%+v", c)
	}
	r.Policies[policy.LRU][0] = 0.1
	if got := r.compare(r.Policies["better"]).GapClosed; math.Abs(got-0.3/0.8) > 1e-9 {
		t.Errorf("gap closed %v", got)
	}
}

func TestTTFTModel(t *testing.T) {
	m := TTFTModel{PrefillTokensPerSecond: 100, BytesPerToken: 2, Loads: []Load{{1000, time.Second}, {400, 2 * time.Second}, {500, 3 * time.Second}}}
	for _, tc := range []struct {
		tokens int
		head   []found
		want   float64
	}{
		{1000, nil, 10},
		{1000, []found{{0, 5}}, 1 + 1 + 5},
		{1000, []found{{0, 10}}, 1 + 2 + 0.01}, // the last token is computed
		{950, []found{{0, 10}}, 1 + 1.9 + 0.01},
		{100, []found{{0, 1}}, 1}, // loading does not pay
		{0, nil, 0.01},
		{1000, []found{{0, 3}, {1, 5}, {0, 2}}, 2 + 2.5 + 1 + 2 + 0.01}, // each level's latency once; all is copied from the first
		{1000, []found{{0, 7}, {1, 3}}, 1 + 1.4 + 3},                    // the slower level does not pay
		{1000, []found{{1, 1}, {0, 9}}, 2 + 0.5 + 1 + 2 + 0.01},         // but as the way to the faster one
		{1000, []found{{1, 4}, {2, 4}}, 3 + 1.6 + 1 + 1.6 + 2},          // levels load at the same time: the slowest counts
	} {
		if got := m.seconds(tc.tokens, 100, tc.head); math.Abs(got-tc.want) > 1e-8 {
			t.Errorf("%d tokens, %v: %v, want %v", tc.tokens, tc.head, got, tc.want)
		}
	}
	times := newTTFTs(m, 100)
	for i := range 100 {
		times.add(0, 100*(100-i), nil)
	}
	if q := times.quantiles(); *q != (Quantiles{51, 91, 100}) {
		t.Errorf("%+v", q)
	}
	m.Engines = 2
	waiting := newTTFTs(m, 100)
	for _, tc := range []struct {
		at, want float32
	}{{0, 1}, {0, 1}, {0.5, 1.5}, {1, 1}, {1, 2}, {9, 1}} { // seconds; each takes one
		waiting.add(time.Duration(tc.at*1000)*time.Millisecond, 100, nil)
		if got := waiting.all[len(waiting.all)-1]; got != tc.want {
			t.Errorf("a request at %v s waits and is computed in %v, want %v", tc.at, got, tc.want)
		}
	}
}

func TestRunModelsTTFT(t *testing.T) {
	requests := chains(5, 300, 2000)
	m := DefaultTTFTModel
	r, err := Run(t.Context(), Options{Trace: &list{requests: requests}, Policies: []string{policy.Prefix}, Capacities: []float64{0.05, 0.5}, TTFT: &m})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range r.Order {
		q := r.TTFT.Policies[name]
		if len(q) != 2 || q[0].P50 <= 0 || q[0].P50 > q[0].P90 || q[0].P90 > q[0].P99 || q[1].P90 > q[0].P90 {
			t.Errorf("%s: %+v", name, q)
		}
		if over := r.TTFT.P90OverLRU[name]; len(over) != 2 || over[1] != q[1].P90/r.TTFT.Policies[policy.LRU][1].P90 {
			t.Errorf("%s: p90 over LRU's %v", name, over)
		}
	}
}

// BenchmarkSimulate is of the conversation trace: its refs/s are by processor time of
// one simulation, without reading the trace and numbering its blocks.
func BenchmarkSimulate(b *testing.B) {
	in, err := trace.Open(tracetest.Public(b, "mooncake_conversation_trace.jsonl.gz"), trace.ReaderOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	s, err := newSpool(b.Context(), in, 0, b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	if err := s.linkUses(b.Context()); err != nil {
		b.Fatal(err)
	}
	for _, name := range append(Policies(), Min) {
		for _, share := range []float64{0.01, 0.1, 0.4} {
			b.Run(fmt.Sprintf("%s/%g", name, share), func(b *testing.B) {
				used := time.Duration(0)
				for b.Loop() {
					g := newGrid(Options{Policies: []string{name}, Capacities: []float64{share}, Progress: func(int, int) {}}, s)
					if err := g.simulate(b.Context(), g.cells[0]); err != nil {
						b.Fatal(err)
					}
					used += g.cells[0].used
				}
				b.ReportMetric(float64(s.references)*float64(b.N)/used.Seconds(), "refs/s")
			})
		}
	}
}
