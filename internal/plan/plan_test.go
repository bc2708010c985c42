package plan

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/internal/simulate"
	"cascadekv/internal/trace"
)

// TestEquation1: the CASCADE paper's own figure, and those that follow from what is published of others.
func TestEquation1(t *testing.T) {
	for name, want := range map[string]int64{
		"llama-2-70b":  327_680, // equation 2 of the paper
		"LLaMA-2-7B":   524_288, // as many heads of keys as of queries
		"llama-3.1-8b": 131_072, // 128 KiB, as the Tutti paper has it
		"qwen2.5-7b":   57_344,
	} {
		m, err := ModelNamed(name)
		if err != nil || m.BytesPerToken() != want {
			t.Errorf("%s: %d, %v, want %d", name, m.BytesPerToken(), err, want)
		}
	}
	if _, err := ModelNamed("gpt-5"); !errors.Is(err, ErrNoModel) {
		t.Error(err)
	}
	if m, _ := ModelNamed("llama-2-70b"); m.WeightBytes() != 138e9 {
		t.Errorf("weights of %d bytes", m.WeightBytes())
	}
}

// TestTuttiFormula is formula (1) with the prices and the machine of the paper: a GPU with 256 GB
// of DRAM, or with 14 TB of SSD.
func TestTuttiFormula(t *testing.T) {
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9*want {
			t.Errorf("%s: %.10g, want %.10g", what, got, want)
		}
	}
	dram := DollarsPerHour(1, GPUPrice, Storage{256e9, DRAMPrice})
	ssd := DollarsPerHour(1, GPUPrice, Storage{14e12, SSDPrice})
	near("with DRAM, an hour", dram, 5+2.2528)
	near("with SSD, an hour", ssd, 5+1.148)
	near("with both, of two GPUs", DollarsPerHour(2, GPUPrice, Storage{256e9, DRAMPrice}, Storage{14e12, SSDPrice}), 10+2.2528+1.148)
	near("a million of ten an hour", DollarsPerMillion(dram, 10e6), 0.72528)
	// "Reduces the serving cost by 66.2 %": with the same SSDs, by 1/0.338 of the tokens.
	near("saved", 1-DollarsPerMillion(ssd, 1/0.338)/DollarsPerMillion(ssd, 1), 0.662)
	if ratio := DRAMPrice / SSDPrice; ratio < 100 || ratio > 110 { // "approximately 100x cheaper per GB"
		t.Errorf("DRAM costs %g times as much", ratio)
	}
}

func levels() []Level {
	shares := []float64{0, 0.25, 0.5, 1}
	return []Level{
		{Name: "dram", Bytes: 400 << 20, BytesPerSecond: 30e9, Latency: time.Millisecond, DollarsPerGBHour: 3, Policy: policy.Prefix, Shares: shares},
		{Name: "nvme", Bytes: 1 << 30, BytesPerSecond: 3e9, Latency: 2 * time.Millisecond, DollarsPerGBHour: 0.5, Policy: policy.Prefix, Shares: shares},
		{Name: "lustre", Bytes: 4 << 30, BytesPerSecond: 1e9, Latency: 10 * time.Millisecond, DollarsPerGBHour: 0.3, Policy: policy.LRU, Shares: shares},
	}
}

func planned(t *testing.T, target Target, change func(*Options)) Result {
	t.Helper()
	synth, err := trace.NewSynth(trace.SynthOptions{Seed: 1, Requests: 150})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Trace: synth, BlockTokens: trace.BlockTokens, BytesPerToken: 4096, PrefillTokensPerSecond: 8000, Engines: 2, GPUs: 2, GPUPrice: GPUPrice,
		Levels: levels(), Target: target, Dir: t.TempDir()}
	if change != nil {
		change(&o)
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestCheapest: the chosen one meets the target, and of all that do none is cheaper; where none
// does, none comes nearer. Hits of all levels and what is computed are all references.
func TestCheapest(t *testing.T) {
	free := planned(t, Target{}, nil)
	if len(free.Configurations) != 64 || !free.Met || free.Chosen != 0 {
		t.Fatalf("%d configurations, %d of them is chosen", len(free.Configurations), free.Chosen)
	}
	best, most := math.Inf(1), 0.0
	for _, c := range free.Configurations {
		best, most = min(best, c.TTFT.P90), max(most, c.HitRatio)
		hits, dollars := int64(0), 10.0
		for i, l := range c.Levels {
			hits += l.Hits
			dollars += float64(l.Bytes) / 1e9 * levels()[i].DollarsPerGBHour
			if (l.Bytes == 0) != (l.BytesPerHour == 0) && i == 0 {
				t.Errorf("%+v", l)
			}
		}
		if hits+c.Recomputed != free.Blocks || math.Abs(dollars-c.DollarsPerHour) > 1e-9 || c.HitRatio > free.UnlimitedHitRatio+1e-9 {
			t.Errorf("%+v of %d blocks", c, free.Blocks)
		}
	}
	if free.Recompute.Recomputed != free.Blocks || free.Recompute.TTFT.P90 <= best || free.BlockBytes != 512*4096 || free.Tokens == 0 || free.Seconds == 0 {
		t.Errorf("%+v", free)
	}
	p90 := func(times float64) time.Duration { return time.Duration(times * best * 1e9) }
	for name, tc := range map[string]struct {
		target Target
		met    bool
	}{
		"P90":             {Target{P90: p90(1.2)}, true},
		"hits":            {Target{Hits: most * 0.9}, true},
		"both":            {Target{P90: p90(2), Hits: most * 0.99}, true},
		"too fast":        {Target{P90: p90(0.5)}, false},
		"too many hits":   {Target{Hits: 1}, false},
		"both, one fails": {Target{P90: p90(1.5), Hits: 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := planned(t, tc.target, nil)
			chosen := r.Configurations[r.Chosen]
			if r.Met != tc.met || chosen.Meets != tc.met {
				t.Fatalf("met: %v, %+v", r.Met, chosen)
			}
			short := func(c Configuration) float64 {
				return max(ratioOver(c.TTFT.P90, tc.target.P90.Seconds()), 1-c.HitRatio/max(tc.target.Hits, 1e-9))
			}
			for _, c := range r.Configurations {
				meets := (tc.target.P90 == 0 || c.TTFT.P90 <= tc.target.P90.Seconds()) && c.HitRatio >= tc.target.Hits
				if meets != c.Meets || meets && c.DollarsPerMillion < chosen.DollarsPerMillion || !tc.met && short(c) < short(chosen)-1e-12 {
					t.Errorf("%+v beside the chosen %+v", c, chosen)
				}
			}
		})
	}
}

func ratioOver(x, limit float64) float64 {
	if limit == 0 {
		return math.Inf(-1)
	}
	return x/limit - 1
}

// TestFrontier: each configuration is on it, or is beaten by one that is.
func TestFrontier(t *testing.T) {
	r := planned(t, Target{}, nil)
	for i := range r.Configurations {
		c, beaten := &r.Configurations[i], false
		for k := range r.Configurations {
			other := &r.Configurations[k]
			beaten = beaten || other.Frontier && other.beats(c)
		}
		if c.Frontier == beaten {
			t.Errorf("%+v: beaten: %v", c, beaten)
		}
	}
}

// TestHandMade: two levels of two and four blocks, of a trace of an hour.
func TestHandMade(t *testing.T) {
	requests := []trace.Request{
		{Timestamp: 0, InputTokens: 20, Hashes: []uint64{1, 2}},
		{Timestamp: 1000, InputTokens: 20, Hashes: []uint64{3, 4}},
		{Timestamp: 2000, InputTokens: 20, Hashes: []uint64{1, 2}},
		{Timestamp: 3600_000, InputTokens: 20, OutputTokens: 20, Hashes: []uint64{1, 2}},
	}
	r, err := Run(t.Context(), Options{Trace: &list{requests}, BlockTokens: 10, BytesPerToken: 5, PrefillTokensPerSecond: 10, GPUs: 1, GPUPrice: 2, Levels: []Level{
		{Name: "dram", Bytes: 119, BytesPerSecond: 100, DollarsPerGBHour: 1e9, Policy: policy.LRU, Shares: []float64{1}},
		{Name: "lustre", Bytes: 200, BytesPerSecond: 50, DollarsPerGBHour: 1, Policy: policy.LRU, Shares: []float64{1}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c := r.Configurations[0]
	dram, lustre := c.Levels[0], c.Levels[1]
	if dram.Hits != 2 || lustre.Hits != 2 || c.Recomputed != 4 || c.HitRatio != 0.5 || dram.BytesPerHour != 300 || lustre.BytesPerHour != 200 {
		t.Errorf("%+v", c)
	}
	// The slowest computes 20 tokens in 2 s; both blocks come from DRAM in 1 s and one token is computed.
	hours := (3600 + 1.1) / 3600
	if c.TTFT != (simulate.Quantiles{P50: 2, P90: 2, P99: 2}) || math.Abs(c.TokensPerHour-100/hours) > 1e-6 || math.Abs(c.DollarsPerHour-121-200e-9) > 1e-9 {
		t.Errorf("%+v", c)
	}
}

func TestRunReportsErrors(t *testing.T) {
	good := func() Options {
		return Options{Trace: &list{[]trace.Request{{InputTokens: 1, Hashes: []uint64{1}}}}, BlockTokens: 1, BytesPerToken: 1, PrefillTokensPerSecond: 1, GPUs: 1, Levels: levels()}
	}
	many := make([]float64, 100)
	for i := range many {
		many[i] = float64(i) / 100
	}
	for name, tc := range map[string]struct {
		change func(*Options)
		want   error
	}{
		"nothing is wrong": {func(*Options) {}, nil},
		"no tokens":        {func(o *Options) { o.BlockTokens = 0 }, ErrBadOptions},
		"no bytes":         {func(o *Options) { o.BytesPerToken = 0 }, ErrBadOptions},
		"bytes too many":   {func(o *Options) { o.BytesPerToken = 9007199254740992000 }, ErrBadOptions},
		"no GPU":           {func(o *Options) { o.GPUs = 0 }, ErrBadOptions},
		"negative price":   {func(o *Options) { o.GPUPrice = -1 }, ErrBadOptions},
		"no level":         {func(o *Options) { o.Levels = nil }, ErrBadOptions},
		"hits above all":   {func(o *Options) { o.Target.Hits = 1.1 }, ErrBadOptions},
		"share above all":  {func(o *Options) { o.Levels[0].Shares = []float64{2} }, ErrBadOptions},
		"negative level":   {func(o *Options) { o.Levels[1].Bytes = -1 }, ErrBadOptions},
		"too many":         {func(o *Options) { o.Levels[0].Shares, o.Levels[1].Shares = many, many }, ErrBadOptions},
		"no rate":          {func(o *Options) { o.Levels[2].BytesPerSecond = 0 }, simulate.ErrBadOptions},
		"no policy":        {func(o *Options) { o.Levels[0].Policy = "best" }, simulate.ErrBadOptions},
		"nothing asked":    {func(o *Options) { o.Trace = &list{} }, simulate.ErrNoBlocks},
	} {
		t.Run(name, func(t *testing.T) {
			o := good()
			tc.change(&o)
			if _, err := Run(t.Context(), o); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

func TestGrid(t *testing.T) {
	got := grid([]Level{{Bytes: 100, Shares: []float64{1, 0.5, 1}}, {Bytes: 0, Shares: []float64{0, 1}}, {Bytes: 8, Shares: []float64{0, 1}}})
	if fmt.Sprint(got) != "[[50 0 0] [50 0 8] [100 0 0] [100 0 8]]" {
		t.Error(got)
	}
}
