package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cascadekv/internal/simulate"
	"cascadekv/internal/trace"
)

// ErrBadOptions marks options with which nothing can be planned.
var ErrBadOptions = errors.New("plan: bad options")

// Level is a level that a job may have, fastest first.
type Level struct {
	Name             string        `json:"name"`
	Bytes            int64         `json:"bytes"`            // of all nodes together, at most
	BytesPerSecond   float64       `json:"bytes_per_second"` // that a request loads
	Latency          time.Duration `json:"latency_ns"`       // before the first byte
	DollarsPerGBHour float64       `json:"dollars_per_gb_hour"`
	Policy           string        `json:"policy"` // a word of simulate.Policies
	Shares           []float64     `json:"shares"` // of Bytes, that are tried: 0 to 1
}

// Target is what a configuration must reach. Zero fields ask for nothing.
type Target struct {
	P90  time.Duration `json:"p90_ns,omitempty"`
	Hits float64       `json:"hits,omitempty"` // share of blocks, 0 to 1
}

// Options say what to plan. All but Target, Requests, Engines, Progress, Workers and Dir are required.
type Options struct {
	Trace       trace.Source // read once; the caller's to close
	Requests    int          // read at most so many; 0: all
	BlockTokens int

	BytesPerToken          int64 // of KV cache
	PrefillTokensPerSecond float64
	Engines                int // that share the requests; 0: no request waits for another
	GPUs                   int // of all nodes
	GPUPrice               float64
	Levels                 []Level
	Target                 Target

	Workers  int // as in simulate.Options, as are the others
	Dir      string
	Progress func(done, total int)
}

// Result is a plan.
type Result struct {
	Trace string `json:"trace,omitempty"` // for the caller to fill in
	Model *Model `json:"model,omitempty"` // likewise, if it is known
	Nodes int    `json:"nodes,omitempty"` // likewise

	Requests          int     `json:"requests"`
	Blocks            int64   `json:"blocks"` // references
	UniqueBlocks      int     `json:"unique_blocks"`
	UnlimitedHitRatio float64 `json:"unlimited_hit_ratio"` // no configuration is above it
	Tokens            int64   `json:"tokens"`              // of prompts and answers
	Seconds           float64 `json:"trace_seconds"`       // from the first request to the last

	BytesPerToken          int64   `json:"bytes_per_token"`
	BlockBytes             int64   `json:"block_bytes"`
	PrefillTokensPerSecond float64 `json:"prefill_tokens_per_second"`
	Engines                int     `json:"engines"`
	GPUs                   int     `json:"gpus"`
	GPUPrice               float64 `json:"dollars_per_gpu_hour"`
	Levels                 []Level `json:"levels"`
	Target                 Target  `json:"target"`

	Recompute      Configuration   `json:"recompute"`      // no level at all
	Configurations []Configuration `json:"configurations"` // the cheapest first
	Chosen         int             `json:"chosen"`         // the cheapest that meets the target, or what comes nearest
	Met            bool            `json:"met"`            // the target, by the chosen one
}

// Configuration is how much of each level a job gets, and what comes of it.
type Configuration struct {
	Levels            []Share            `json:"levels"`
	HitRatio          float64            `json:"hit_ratio_blocks"` // of all levels
	Recomputed        int64              `json:"recomputed_blocks"`
	TTFT              simulate.Quantiles `json:"ttft_seconds"`
	TokensPerHour     float64            `json:"tokens_per_hour"`
	DollarsPerHour    float64            `json:"dollars_per_hour"`
	DollarsPerMillion float64            `json:"dollars_per_million_tokens"`
	Meets             bool               `json:"meets_target"`
	Frontier          bool               `json:"frontier"` // none is as good in cost, P90 and hits, and better in one
}

// Share is what a configuration has of a level.
type Share struct {
	Name         string  `json:"name"`
	Bytes        int64   `json:"bytes"` // of all nodes together
	Hits         int64   `json:"hits"`  // references that it served
	HitRatio     float64 `json:"hit_ratio_blocks"`
	BytesPerHour float64 `json:"written_bytes_per_hour"` // of the trace's time
}

// maxConfigurations bounds the search: each reads the trace.
const maxConfigurations = 4096

// Run simulates each combination of the levels' shares, and chooses. Memory and the temporary
// file are those of simulate.RunLadders. Errors: ErrBadOptions, and those of simulate.
func Run(ctx context.Context, o Options) (Result, error) {
	if err := o.check(); err != nil {
		return Result{}, err
	}
	rooms := grid(o.Levels)
	if len(rooms) > maxConfigurations {
		return Result{}, fmt.Errorf("%w: %d configurations, at most %d; try fewer shares", ErrBadOptions, len(rooms), maxConfigurations)
	}
	model := simulate.TTFTModel{PrefillTokensPerSecond: o.PrefillTokensPerSecond, BytesPerToken: float64(o.BytesPerToken), Engines: o.Engines}
	for _, l := range o.Levels {
		model.Loads = append(model.Loads, simulate.Load{BytesPerSecond: l.BytesPerSecond, Latency: l.Latency})
	}
	found, err := simulate.RunLadders(ctx, simulate.Options{
		Trace: o.Trace, Requests: o.Requests, BlockTokens: o.BlockTokens, Workers: o.Workers, Dir: o.Dir, TTFT: &model, Progress: o.Progress,
	}, o.ladders(rooms))
	if err != nil {
		return Result{}, err
	}
	r := Result{
		Requests: found.Requests, Blocks: found.Blocks, UniqueBlocks: found.UniqueBlocks, UnlimitedHitRatio: found.UnlimitedHitRatio,
		Tokens: found.PromptTokens + found.AnswerTokens, Seconds: found.Span.Seconds(),
		BytesPerToken: o.BytesPerToken, BlockBytes: o.blockBytes(), PrefillTokensPerSecond: o.PrefillTokensPerSecond,
		Engines: o.Engines, GPUs: o.GPUs, GPUPrice: o.GPUPrice, Levels: o.Levels, Target: o.Target,
		Recompute: o.configuration(&found, nil, &found.Results[0]),
	}
	for i, bytes := range rooms {
		r.Configurations = append(r.Configurations, o.configuration(&found, bytes, &found.Results[i+1]))
	}
	r.choose()
	return r, nil
}

// maxBlock bounds a block, in bytes, so that sums of many do not overflow.
const maxBlock = 1 << 40

func (o *Options) check() error {
	switch {
	case o.BlockTokens <= 0 || o.BytesPerToken <= 0:
		return fmt.Errorf("%w: blocks of %d tokens of %d bytes; give more than 0", ErrBadOptions, o.BlockTokens, o.BytesPerToken)
	case o.BytesPerToken > maxBlock/int64(o.BlockTokens):
		return fmt.Errorf("%w: blocks of %d tokens of %d bytes; a block may have %d bytes", ErrBadOptions, o.BlockTokens, o.BytesPerToken, int64(maxBlock))
	case o.GPUs <= 0:
		return fmt.Errorf("%w: %d GPUs; give more than 0", ErrBadOptions, o.GPUs)
	case !(o.GPUPrice >= 0):
		return fmt.Errorf("%w: a price of %g for a GPU; give 0 or more", ErrBadOptions, o.GPUPrice)
	case len(o.Levels) == 0:
		return fmt.Errorf("%w: no level", ErrBadOptions)
	case o.Target.P90 < 0 || !(o.Target.Hits >= 0 && o.Target.Hits <= 1):
		return fmt.Errorf("%w: a target of %s and %g hits; give no negative time, and a share of 0 to 1", ErrBadOptions, o.Target.P90, o.Target.Hits)
	}
	for _, l := range o.Levels {
		for _, share := range l.Shares {
			if !(share >= 0 && share <= 1) {
				return fmt.Errorf("%w: a share of %g of %s; give 0 to 1", ErrBadOptions, share, l.Name)
			}
		}
		if l.Bytes < 0 || !(l.DollarsPerGBHour >= 0) || len(l.Shares) == 0 {
			return fmt.Errorf("%w: %s of %d bytes at %g a GB in %d shares; give 0 or more, and a share", ErrBadOptions, l.Name, l.Bytes, l.DollarsPerGBHour, len(l.Shares))
		}
	}
	return nil
}

// grid returns the bytes of each level in each combination of shares.
func grid(levels []Level) [][]int64 {
	all := [][]int64{nil}
	for _, l := range levels {
		var sizes []int64
		for _, share := range l.Shares {
			sizes = append(sizes, int64(share*float64(l.Bytes)))
		}
		slices.Sort(sizes)
		var next [][]int64
		for _, before := range all {
			for _, size := range slices.Compact(slices.Clone(sizes)) {
				next = append(next, append(slices.Clone(before), size))
			}
		}
		if all = next; len(all) > maxConfigurations {
			break
		}
	}
	return all
}

func (o *Options) blockBytes() int64 { return int64(o.BlockTokens) * o.BytesPerToken }

// ladders has one without levels first.
func (o *Options) ladders(rooms [][]int64) [][]simulate.Level {
	all := [][]simulate.Level{nil}
	for _, bytes := range rooms {
		var ladder []simulate.Level
		for i, l := range o.Levels {
			ladder = append(ladder, simulate.Level{Policy: l.Policy, Blocks: int(bytes[i] / o.blockBytes())})
		}
		all = append(all, ladder)
	}
	return all
}

func (o *Options) configuration(all *simulate.Ladders, bytes []int64, one *simulate.LadderResult) Configuration {
	c := Configuration{TTFT: one.TTFT, Recomputed: all.Blocks}
	span := all.Span
	if span == 0 { // all requests came at once
		span = one.End
	}
	var storage []Storage
	for i, b := range bytes {
		hits := one.Hits[i]
		c.Recomputed -= hits
		c.Levels = append(c.Levels, Share{
			Name: o.Levels[i].Name, Bytes: b, Hits: hits, HitRatio: float64(hits) / float64(all.Blocks),
			BytesPerHour: float64(one.Entered[i]*o.blockBytes()) / span.Hours(),
		})
		storage = append(storage, Storage{b, o.Levels[i].DollarsPerGBHour})
	}
	c.HitRatio = 1 - float64(c.Recomputed)/float64(all.Blocks)
	c.TokensPerHour = float64(all.PromptTokens+all.AnswerTokens) / one.End.Hours()
	c.DollarsPerHour = DollarsPerHour(o.GPUs, o.GPUPrice, storage...)
	c.DollarsPerMillion = DollarsPerMillion(c.DollarsPerHour, c.TokensPerHour)
	c.Meets = o.Target.missedBy(&c) <= 0
	return c
}

// missedBy is how far a configuration is from a target: 0.5 is half too slow, or too few hits
// by half; 0 or less meets it.
func (t Target) missedBy(c *Configuration) float64 {
	by := -1.0
	if t.P90 > 0 {
		by = max(by, c.TTFT.P90/t.P90.Seconds()-1)
	}
	if t.Hits > 0 {
		by = max(by, 1-c.HitRatio/t.Hits)
	}
	return by
}

// choose orders the configurations, and chooses one.
func (r *Result) choose() {
	all := r.Configurations
	slices.SortStableFunc(all, func(a, b Configuration) int {
		return cmp.Or(cmp.Compare(a.DollarsPerMillion, b.DollarsPerMillion), cmp.Compare(a.TTFT.P90, b.TTFT.P90), cmp.Compare(b.HitRatio, a.HitRatio))
	})
	for i := range all {
		all[i].Frontier = !slices.ContainsFunc(all, func(other Configuration) bool { return other.beats(&all[i]) })
	}
	r.Chosen = slices.IndexFunc(all, func(c Configuration) bool { return c.Meets })
	if r.Met = r.Chosen >= 0; r.Met {
		return
	}
	r.Chosen = 0
	for i := range all {
		if r.Target.missedBy(&all[i]) < r.Target.missedBy(&all[r.Chosen]) {
			r.Chosen = i
		}
	}
}

// beats reports whether c is at least as good as d in all, and better in one.
func (c *Configuration) beats(d *Configuration) bool {
	return c.DollarsPerMillion <= d.DollarsPerMillion && c.TTFT.P90 <= d.TTFT.P90 && c.HitRatio >= d.HitRatio &&
		(c.DollarsPerMillion < d.DollarsPerMillion || c.TTFT.P90 < d.TTFT.P90 || c.HitRatio > d.HitRatio)
}
