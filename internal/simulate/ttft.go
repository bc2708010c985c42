package simulate

import (
	"fmt"
	"slices"
	"time"

	"cascadekv/cascade/estimate"
)

// TTFTModel models the time to first token of a request by what it must read: blocks
// that hit are loaded from their levels, as far as that is faster than to compute them, and
// the others are computed. How long a load takes is estimate.Times, by which a rank advises: levels load
// at the same time, into the first, and all is copied from there. At least one token is computed. With
// engines, a request waits until one of them has no other; without, nothing waits.
type TTFTModel struct {
	PrefillTokensPerSecond float64 // of an engine
	BytesPerToken          float64 // of KV cache
	Engines                int     // that share the levels and the requests; 0: one for each request
	Loads                  []Load  // of each level, fastest first; one tier has one
}

// Load is how fast a request loads from a level.
type Load struct {
	BytesPerSecond float64
	Latency        time.Duration // before the first byte, once for each request
}

// DefaultTTFTModel is LLaMA-2-70B, 327,680 bytes for a token by CASCADE's equation 1, with a
// prefill of 10,000 tokens per second and memory behind a PCIe link in use.
var DefaultTTFTModel = TTFTModel{
	PrefillTokensPerSecond: 10_000,
	BytesPerToken:          327_680,
	Loads:                  []Load{{BytesPerSecond: 20 << 30, Latency: time.Millisecond}},
}

// maxEngines bounds what a request looks through.
const maxEngines = 1 << 12

// leastRate and mostRate are what times of a model can be computed with.
const leastRate, mostRate = 1e-6, 1e18

func rate(n float64) bool { return n >= leastRate && n <= mostRate }

// Validate returns an ErrBadOptions that names the value with which nothing can be modelled.
func (m TTFTModel) Validate() error {
	switch {
	case !rate(m.PrefillTokensPerSecond):
		return fmt.Errorf("%w: a prefill rate of %g tokens per second; give one from %g to %g", ErrBadOptions, m.PrefillTokensPerSecond, leastRate, mostRate)
	case !rate(m.BytesPerToken):
		return fmt.Errorf("%w: %g bytes per token; give %g to %g", ErrBadOptions, m.BytesPerToken, leastRate, mostRate)
	case m.Engines < 0 || m.Engines > maxEngines:
		return fmt.Errorf("%w: %d engines; give 0 to %d, where 0 is one for each request", ErrBadOptions, m.Engines, maxEngines)
	}
	for _, l := range m.Loads {
		switch {
		case !rate(l.BytesPerSecond):
			return fmt.Errorf("%w: a load rate of %g bytes per second; give one from %g to %g", ErrBadOptions, l.BytesPerSecond, leastRate, mostRate)
		case l.Latency < 0:
			return fmt.Errorf("%w: a load latency of %s; give 0 or more", ErrBadOptions, l.Latency)
		}
	}
	return nil
}

// found is a piece of a prompt that one level has.
type found struct {
	level  int
	blocks int
}

// lines are the loads of the levels.
func (m TTFTModel) lines() (lines []estimate.Line) {
	for _, l := range m.Loads {
		lines = append(lines, estimate.Line{Latency: l.Latency, PerByte: float64(time.Second) / l.BytesPerSecond})
	}
	return lines
}

// seconds is how long an engine takes to the first token of a prompt of so many tokens, whose
// head was found, in blocks of blockTokens. What is loaded ends where a piece ends, as in estimate.Best.
func (m TTFTModel) seconds(tokens, blockTokens int, head []found) float64 {
	runs, have := make([]estimate.Run, len(head)), 0
	left := make([]int, len(head)) // tokens to compute behind each
	for i, f := range head {
		more := min(f.blocks*blockTokens, tokens-have)
		have += more
		runs[i], left[i] = estimate.Run{Level: f.level, Blocks: f.blocks, Bytes: int64(float64(more) * m.BytesPerToken)}, tokens-have
	}
	best := float64(max(tokens, 1)) / m.PrefillTokensPerSecond
	for i, load := range estimate.Times(runs, m.lines()) {
		best = min(best, load.Seconds()+float64(max(left[i], 1))/m.PrefillTokensPerSecond)
	}
	return best
}

// Quantiles are of modelled times to first token, in seconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// ttfts collects times: 4 bytes a request.
type ttfts struct {
	model       TTFTModel
	blockTokens int
	free        []float64 // seconds at which each engine is
	all         []float32
	end         float64 // of the last that was computed, in seconds since the first request
}

func newTTFTs(m TTFTModel, blockTokens int) *ttfts {
	return &ttfts{model: m, blockTokens: blockTokens, free: make([]float64, m.Engines)}
}

// add adds a request. They come in the order of their times.
func (t *ttfts) add(at time.Duration, tokens int, head []found) {
	seconds := t.model.seconds(tokens, t.blockTokens, head)
	if len(t.free) > 0 {
		first := 0
		for i, when := range t.free {
			if when < t.free[first] {
				first = i
			}
		}
		t.free[first] = max(t.free[first], at.Seconds()) + seconds
		seconds = t.free[first] - at.Seconds()
	}
	t.end = max(t.end, at.Seconds()+seconds)
	t.all = append(t.all, float32(seconds))
}

func (t *ttfts) quantiles() *Quantiles {
	slices.Sort(t.all)
	at := func(q float64) float64 {
		if len(t.all) == 0 {
			return 0
		}
		return float64(t.all[min(int(q*float64(len(t.all))), len(t.all)-1)])
	}
	return &Quantiles{P50: at(0.5), P90: at(0.9), P99: at(0.99)}
}
