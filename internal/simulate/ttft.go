package simulate

import (
	"fmt"
	"slices"
	"time"
)

// TTFTModel models the time to first token of a request by what it must read: the blocks
// that hit are loaded from the tier and the others computed, or all are computed where
// that is faster. At least one token is computed. With engines, a request waits until one of
// them has no other; without, nothing waits.
type TTFTModel struct {
	PrefillTokensPerSecond float64       // of an engine
	LoadBytesPerSecond     float64       // of the tier, for each request
	LoadLatency            time.Duration // of a request's load
	BytesPerToken          float64       // of KV cache
	Engines                int           // that share the tier and the requests; 0: one for each request
}

// DefaultTTFTModel is LLaMA-2-70B, 327,680 bytes for a token by CASCADE's equation 1, with a
// prefill of 10,000 tokens per second and memory behind a PCIe link in use.
var DefaultTTFTModel = TTFTModel{
	PrefillTokensPerSecond: 10_000,
	LoadBytesPerSecond:     20 << 30,
	LoadLatency:            time.Millisecond,
	BytesPerToken:          327_680,
}

// maxEngines bounds what a request looks through.
const maxEngines = 1 << 12

// Validate returns an ErrBadOptions that names the value with which nothing can be modelled.
func (m TTFTModel) Validate() error {
	switch {
	case !(m.PrefillTokensPerSecond > 0):
		return fmt.Errorf("%w: a prefill rate of %g tokens per second; give one above 0", ErrBadOptions, m.PrefillTokensPerSecond)
	case !(m.LoadBytesPerSecond > 0):
		return fmt.Errorf("%w: a load rate of %g bytes per second; give one above 0", ErrBadOptions, m.LoadBytesPerSecond)
	case !(m.BytesPerToken > 0):
		return fmt.Errorf("%w: %g bytes per token; give more than 0", ErrBadOptions, m.BytesPerToken)
	case m.LoadLatency < 0:
		return fmt.Errorf("%w: a load latency of %s; give 0 or more", ErrBadOptions, m.LoadLatency)
	case m.Engines < 0 || m.Engines > maxEngines:
		return fmt.Errorf("%w: %d engines; give 0 to %d, where 0 is one for each request", ErrBadOptions, m.Engines, maxEngines)
	}
	return nil
}

// seconds is how long an engine takes to the first token of a prompt of so many tokens, of
// which the first can be loaded.
func (m TTFTModel) seconds(tokens, hits int) float64 {
	compute := float64(max(tokens, 1)) / m.PrefillTokensPerSecond
	if hits == 0 {
		return compute
	}
	load := m.LoadLatency.Seconds() + float64(hits)*m.BytesPerToken/m.LoadBytesPerSecond
	return min(compute, load+float64(max(tokens-hits, 1))/m.PrefillTokensPerSecond)
}

// Quantiles are of modelled times to first token, in seconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// ttfts collects times: 4 bytes a request.
type ttfts struct {
	model TTFTModel
	free  []float64 // seconds at which each engine is
	all   []float32
}

func newTTFTs(m TTFTModel) *ttfts { return &ttfts{model: m, free: make([]float64, m.Engines)} }

// add adds a request. They come in the order of their times.
func (t *ttfts) add(at time.Duration, tokens, hits int) {
	seconds := t.model.seconds(tokens, hits)
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
	t.all = append(t.all, float32(seconds))
}

// quantiles returns nil of a nil t.
func (t *ttfts) quantiles() *Quantiles {
	if t == nil {
		return nil
	}
	slices.Sort(t.all)
	at := func(q float64) float64 {
		if len(t.all) == 0 {
			return 0
		}
		return float64(t.all[min(int(q*float64(len(t.all))), len(t.all)-1)])
	}
	return &Quantiles{P50: at(0.5), P90: at(0.9), P99: at(0.99)}
}
