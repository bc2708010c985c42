package slack_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"cascadekv/gpu/slack"
)

func read(n int) slack.Launch     { return slack.Launch{Kind: slack.Read, IOCBs: n} }
func required(n int) slack.Launch { return slack.Launch{Kind: slack.Read, IOCBs: n, Required: true} }
func write(n int) slack.Launch    { return slack.Launch{Kind: slack.Write, IOCBs: n} }
func fenced(l slack.Launch) slack.Launch {
	l.Fence = true
	return l
}

// TestLargestCountThatFits is the first rule of Tutti §3.3: before each layer the
// scheduler launches the largest count that fits into its window, layers ahead.
func TestLargestCountThatFits(t *testing.T) {
	s := scheduler(t, profile())
	is(t, "arrival", must(t)(s.Begin(slack.Request{Input: 64, Reads: []int{3, 3, 2, 2}})), required(3))
	// 10 ms: those of layer 1 take 3, and all 4 of layers 2 and 3 fit into the other 7.
	is(t, "layer 0", must(t)(s.Layer(0)), read(3), read(4))
	is(t, "layer 1", must(t)(s.Layer(1)))
	must(t)(s.Begin(slack.Request{Input: 64, Reads: []int{3, 3, 30, 3}}))
	is(t, "more than fit", must(t)(s.Layer(0)), read(3), read(7))
	is(t, "the next layer's that are left", must(t)(s.Layer(1)), required(23))
	is(t, "the last layer's", must(t)(s.Layer(2)), read(3))
	is(t, "all are read", must(t)(s.Layer(3)))
	if s.Reads() != 0 {
		t.Errorf("%d reads left", s.Reads())
	}
}

// TestBudgetOfSMs: time alone is no window.
func TestBudgetOfSMs(t *testing.T) {
	p := profile()
	p.Prefill[0].SMs[0] = 5
	s := scheduler(t, p)
	must(t)(s.Begin(slack.Request{Input: 64, Reads: []int{0, 2, 2, 2}}))
	is(t, "two IOCBs take 4 of 5 SMs, three up to 8", must(t)(s.Layer(0)), read(2), read(2))
}

// TestRequiredWithoutWindow: with high reuse the reads are the bottleneck, and
// waiting for a window would only stall compute; so what the next layer waits for
// is launched at once, and no more.
func TestRequiredWithoutWindow(t *testing.T) {
	p := profile()
	for k := range p.Prefill[0].Time {
		p.Prefill[0].Time[k] = 2 * ms
	}
	s := scheduler(t, p)
	is(t, "arrival", must(t)(s.Begin(slack.Request{Input: 64, Reads: []int{4, 4, 4, 4}})), required(4))
	is(t, "two would fit, four are waited for", must(t)(s.Layer(0)), required(4))
	is(t, "layer 1", must(t)(s.Layer(1)), required(4))
	p.Prefill[0].SMs[0] = 0
	is(t, "nothing fits", must(t)(s.Layer(2)), required(4))
	is(t, "all are read", must(t)(s.Layer(3)))
	if got := s.Stats(); got.RequiredReads != 16 || got.Reads != 16 {
		t.Errorf("%+v", got)
	}
}

// TestNothingIsRequiredAfterPrefetch: a window that is too small is left alone
// where the next layer's reads were launched before.
func TestNothingIsRequiredAfterPrefetch(t *testing.T) {
	p := profile()
	s := scheduler(t, p)
	must(t)(s.Begin(slack.Request{Input: 64, Reads: []int{0, 4, 4, 4}}))
	is(t, "layer 0", must(t)(s.Layer(0)), read(4), read(6))
	p.Prefill[0].SMs[0] = 1
	is(t, "layer 1 leaves one SM, layer 2 has its reads", must(t)(s.Layer(1)))
	is(t, "layer 3 waits", must(t)(s.Layer(2)), required(2))
}

// TestReadsBeforeWrites: writes wait until no reads are left, and no window has
// both, also where there is time for both.
func TestReadsBeforeWrites(t *testing.T) {
	s := scheduler(t, profile())
	if err := s.Queue(2); err != nil {
		t.Fatal(err)
	}
	must(t)(s.Begin(slack.Request{Input: 128, Reads: []int{1, 1, 0, 0}}))
	is(t, "layer 0", must(t)(s.Layer(0)), read(1)) // 19 ms are left
	is(t, "layer 1", must(t)(s.Layer(1)), fenced(write(2)))
	if err := s.Queue(8); err != nil {
		t.Fatal(err)
	}
	is(t, "6 of 3 ms fit into 20 ms", must(t)(s.Layer(2)), write(6))
	is(t, "a request waits for writes that were launched", must(t)(s.Begin(slack.Request{Input: 64, Reads: []int{1, 0, 0, 0}})), fenced(required(1)))
}

// TestWritesWait: for slack of a later layer, then for decoding, then for a later
// request, then for idle time.
func TestWritesWait(t *testing.T) {
	p := profile()
	for k := range p.Prefill[0].Time {
		p.Prefill[0].Time[k] = 2 * ms // a write takes 3
	}
	s := scheduler(t, p)
	queue := func(n int) {
		if err := s.Queue(n); err != nil {
			t.Fatal(err)
		}
	}
	must(t)(s.Begin(slack.Request{Input: 64}))
	for l := range 4 {
		is(t, "no slack in this prefill", must(t)(s.Layer(l)))
		queue(3)
	}
	if got := s.Stats().Deferred; got != 3 {
		t.Errorf("%d windows were too small, want 3: the first had nothing to write", got)
	}
	is(t, "a decode step of 4 ms takes one", s.Decode(0).Launches, write(1))
	is(t, "behind 128 tokens, 6 ms, two", s.Decode(128).Launches, write(2))
	must(t)(s.Begin(slack.Request{Input: 128}))
	is(t, "a later request", must(t)(s.Layer(0)), write(6))
	if s.Writes() != 3 {
		t.Errorf("%d writes are queued", s.Writes())
	}
	is(t, "no compute", s.Idle().Launches, write(3))
	is(t, "none left", s.Idle().Launches)
}

// TestDecodeLeavesReadsAlone: a decode step between layers of a prefill that still
// reads takes no writes.
func TestDecodeLeavesReadsAlone(t *testing.T) {
	s := scheduler(t, profile())
	if err := s.Queue(1); err != nil {
		t.Fatal(err)
	}
	must(t)(s.Begin(slack.Request{Input: 64, Reads: []int{0, 0, 0, 9}}))
	is(t, "decode", s.Decode(64).Launches)
	is(t, "idle", s.Idle().Launches)
}

// TestGivenUp: the next request forgets what one before it had still to read, but
// not what is to be written.
func TestGivenUp(t *testing.T) {
	s := scheduler(t, profile())
	must(t)(s.Begin(slack.Request{Input: 64, Reads: []int{1, 2, 3, 4}}))
	if err := s.Queue(5); err != nil {
		t.Fatal(err)
	}
	must(t)(s.Begin(slack.Request{Input: 64}))
	if s.Reads() != 0 || s.Writes() != 5 {
		t.Errorf("%d reads, %d writes", s.Reads(), s.Writes())
	}
	s.Forget(2)
	s.Forget(-1)
	if s.Writes() != 3 {
		t.Errorf("%d writes", s.Writes())
	}
	s.Forget(100)
	if got := s.Stats(); s.Writes() != 0 || got.Forgotten != 5 {
		t.Errorf("%d writes, %+v", s.Writes(), got)
	}
}

// TestSkippedLayer: reads of a layer that was not planned come with the next one,
// and with no write.
func TestSkippedLayer(t *testing.T) {
	s := scheduler(t, profile())
	if err := s.Queue(1); err != nil {
		t.Fatal(err)
	}
	must(t)(s.Begin(slack.Request{Input: 64, Reads: []int{1, 2, 3, 1}}))
	is(t, "layer 2", must(t)(s.Layer(2)), required(5), read(1))
	must(t)(s.Begin(slack.Request{Input: 64, Reads: []int{1, 2, 3, 1}}))
	is(t, "layer 3", must(t)(s.Layer(3)), required(6))
	must(t)(s.Begin(slack.Request{Input: 64, Reads: []int{1, 2, 3, 1}}))
	is(t, "layer 1", must(t)(s.Layer(1)), required(2), read(3), read(1))
}

func TestRequestsAreRefused(t *testing.T) {
	s := scheduler(t, profile())
	for name, r := range map[string]slack.Request{
		"three layers":   {Input: 1, Reads: []int{1, 1, 1}},
		"negative reads": {Input: 1, Reads: []int{1, 1, 1, -1}},
		"no tokens":      {Input: -1},
		"overflow":       {Input: 1, Reads: []int{1 << 62, 1 << 62, 0, 0}},
	} {
		if _, err := s.Begin(r); !errors.Is(err, slack.ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, l := range []int{-1, 4} {
		if _, err := s.Layer(l); !errors.Is(err, slack.ErrRequest) {
			t.Errorf("layer %d: %v", l, err)
		}
	}
	for _, n := range []int{-1, 1 << 62} {
		if err := s.Queue(n); !errors.Is(err, slack.ErrRequest) {
			t.Errorf("%d writes: %v", n, err)
		}
	}
	if err := errors.Join(s.Queue(1), s.Queue(math.MaxInt)); !errors.Is(err, slack.ErrRequest) || s.Writes() != 1 {
		t.Errorf("writes that wrap: %v, %d queued", err, s.Writes())
	}
	p := profile()
	p.Read = nil
	if _, err := slack.New(p); !errors.Is(err, slack.ErrProfile) {
		t.Errorf("no reads: %v", err)
	}
}

// TestObserve: errors are means of what was off, of each quantity its own.
func TestObserve(t *testing.T) {
	s := scheduler(t, profile())
	s.Observe(slack.WindowTime, 110*ms, 100*ms)
	s.Observe(slack.WindowTime, 80*ms, 100*ms)
	s.Observe(slack.ReadTime, 3*ms, 2*ms)
	s.Observe(slack.WriteTime, 2*ms, 2*ms)
	s.Observe(slack.WriteTime, 2*ms, 0)
	got := s.Stats()
	near := func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }
	if w := got.Window; w.Count != 2 || !near(w.Error, .15) || !near(w.Bias, -.05) {
		t.Errorf("windows: %+v", w)
	}
	if r := got.Read; r.Count != 1 || !near(r.Error, .5) || !near(r.Bias, .5) {
		t.Errorf("reads: %+v", r)
	}
	if w := got.Write; w.Count != 1 || w.Error != 0 {
		t.Errorf("writes: %+v", w)
	}
}

// TestInvariants plans drawn requests: each read is launched once and before its
// layer, no window has both kinds, what is not required fits, each change of direction is
// fenced, and writes are neither lost nor made up.
func TestInvariants(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 31))
		p := profile()
		for i := range p.Prefill {
			for k := range p.Prefill[i].Time {
				p.Prefill[i].Time[k], p.Prefill[i].SMs[k] = time.Duration(rnd.IntN(30))*ms, rnd.IntN(33)
			}
		}
		s := scheduler(t, p)
		queued, written, last := 0, 0, -1
		check := func(what string, d slack.Decision) (reads int) {
			t.Helper()
			var took time.Duration
			for _, l := range d.Launches {
				if !l.Required {
					took += l.Estimate
				}
				if l.Kind != d.Launches[0].Kind || l.IOCBs < 1 {
					t.Fatalf("seed %d, %s: %+v", seed, what, d)
				}
				if !l.Required && (took > d.Window.Time || l.SMs > d.Window.SMs) {
					t.Fatalf("seed %d, %s: does not fit: %+v", seed, what, d)
				}
				if l.Fence != (last >= 0 && last != int(l.Kind)) {
					t.Fatalf("seed %d, %s: fence of %+v", seed, what, d)
				}
				last = int(l.Kind)
				if l.Kind == slack.Write {
					written += l.IOCBs
				} else {
					reads += l.IOCBs
				}
			}
			return reads
		}
		for range 20 {
			r := slack.Request{Input: rnd.IntN(400), Prefix: rnd.IntN(400)}
			if rnd.IntN(4) > 0 {
				r.Reads = []int{rnd.IntN(12), rnd.IntN(12), rnd.IntN(12), rnd.IntN(12)}
			}
			d, err := s.Begin(r)
			if err != nil {
				t.Fatal(err)
			}
			got, due := check("begin", d), 0
			for l := range 4 {
				if r.Reads != nil {
					due += r.Reads[l]
				}
				if got < due {
					t.Fatalf("seed %d: layer %d begins with %d of %d reads launched", seed, l, got, due)
				}
				d, err := s.Layer(l)
				if err != nil {
					t.Fatal(err)
				}
				got += check("layer", d)
				n := rnd.IntN(5)
				if err := s.Queue(n); err != nil {
					t.Fatal(err)
				}
				queued += n
			}
			check("decode", s.Decode(rnd.IntN(600)))
			if s.Writes() != queued-written {
				t.Fatalf("seed %d: %d writes are queued, %d were, %d launched", seed, s.Writes(), queued, written)
			}
		}
	}
}

// TestPlansWithoutAllocating stands in for a bound on time: a plan of a layer is
// two bisections of a table, and no memory.
func TestPlansWithoutAllocating(t *testing.T) {
	s := scheduler(t, profile())
	reads := []int{3, 3, 3, 3}
	if n := testing.AllocsPerRun(100, func() {
		must(t)(s.Begin(slack.Request{Input: 100, Prefix: 70, Reads: reads}))
		for l := range 4 {
			must(t)(s.Layer(l))
			_ = s.Queue(2)
		}
		s.Decode(170)
		s.Observe(slack.WindowTime, ms, 2*ms)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkLayer(b *testing.B) {
	s, err := slack.New(profile())
	if err != nil {
		b.Fatal(err)
	}
	reads := []int{3, 3, 3, 3}
	for b.Loop() {
		_, _ = s.Begin(slack.Request{Input: 100, Prefix: 70, Reads: reads})
		for l := range 4 {
			_, _ = s.Layer(l)
			_ = s.Queue(2)
		}
	}
}
