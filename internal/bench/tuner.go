package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"cascadekv/lustre/tuner"
)

// TunerRequest is one request of a workload, as an index sees it: a chain of
// blocks whose head is stored already.
type TunerRequest struct {
	Sequence int64 // number of the chain; it is new
	Prefix   int64 // number of the chain of the warm-up that it shares its head with
	Blocks   int   // of the chain
	Cached   int   // blocks of the head; 0 to Blocks
}

// TunerTarget is an index that a workload is replayed on. One goroutine uses
// it.
type TunerTarget interface {
	// Serve finds the longest stored head of the chain, reads its entries, and
	// puts those of the other blocks. It returns what it did.
	Serve(ctx context.Context, r TunerRequest) (tuner.Counts, error)
	// Retune gives the index another setting.
	Retune(ctx context.Context, s tuner.Setting) error
	// Cost is what was spent so far, in the target's unit.
	Cost() float64
	// Tree is the index as the cost model sees it.
	Tree() tuner.Tree
	// Close gives up everything the target holds.
	Close() error
}

// TunerOptions choose a replay. The zero value is the paper's workload
// (SGLang-LSM §4.1) with blocks of 16 tokens, on the cost model.
type TunerOptions struct {
	HitRates     []float64 // expected, one for each stage
	Requests     int       // of a stage; default 1000
	PromptTokens int       // default 8192
	BlockTokens  int       // default 16
	WarmTokens   int64     // stored before the first stage; default 100 million

	Shapes []tuner.Shape // replayed one after the other; default Pebble and Tiered
	Tuner  tuner.Options
	Start  tuner.Setting // of the controller, and the fixed setting; default tuner.Default

	// Open makes a target that holds warm chains of blocks entries each and
	// has setting s. Unit is what its costs are in. The default is the cost
	// model, in pages.
	Open func(ctx context.Context, shape tuner.Shape, s tuner.Setting, warm int64, blocks int) (TunerTarget, error)
	Unit string
	// Statics are the settings among which the best one in hindsight is sought;
	// default all within the tuner's bounds.
	Statics []tuner.Setting

	Progress func(done, total int) // called after each replay, by one goroutine; may be nil
}

// TunerResult compares the controller with settings that stay. Costs are for
// each request, in Unit.
type TunerResult struct {
	Unit         string       `json:"unit"`
	Requests     int          `json:"requests"` // of a stage
	PromptTokens int          `json:"prompt_tokens"`
	BlockTokens  int          `json:"block_tokens"`
	WarmEntries  int64        `json:"warm_entries"`
	Shapes       []TunerShape `json:"shapes"`
}

// TunerShape is the replay on one shape of tree.
type TunerShape struct {
	Shape      string        `json:"shape"`
	Fixed      tuner.Setting `json:"fixed"`
	BestStatic tuner.Setting `json:"best_static"` // of all stages together, known in hindsight
	Stages     []TunerStage  `json:"stages"`
	Total      TunerCosts    `json:"total"`  // means over the stages
	Saving     float64       `json:"saving"` // of the controller over fixed, as a part of the latter

	Changes  []tuner.Decision `json:"changes"`  // that were made
	Verdicts map[string]int   `json:"verdicts"` // of all steps
}

// TunerStage is one stage.
type TunerStage struct {
	ExpectedHit float64       `json:"expected_hit"`
	Hit         float64       `json:"hit"`     // blocks found, as a part of those asked for
	Setting     tuner.Setting `json:"setting"` // the controller's at the end of the stage
	BestStage   tuner.Setting `json:"best_stage"`
	Mix         tuner.Mix     `json:"mix"`
	TunerCosts
}

// TunerCosts are costs for each request.
type TunerCosts struct {
	Controller float64 `json:"controller"`
	Fixed      float64 `json:"fixed"`
	BestStatic float64 `json:"best_static"`
	BestStages float64 `json:"best_stages"` // each stage under its own best setting
}

// paperHitRates are the stages of SGLang-LSM §4.1.
var paperHitRates = []float64{0.2, 0.3, 0.5, 0.7, 0.5, 0.3, 0.1, 0.3, 0.5, 0.7}

func (o TunerOptions) withDefaults() TunerOptions {
	if len(o.HitRates) == 0 {
		o.HitRates = paperHitRates
	}
	if o.Requests == 0 {
		o.Requests = 1000
	}
	if o.PromptTokens == 0 {
		o.PromptTokens = 8192
	}
	if o.BlockTokens == 0 {
		o.BlockTokens = 16
	}
	if o.WarmTokens == 0 {
		o.WarmTokens = 100e6
	}
	if len(o.Shapes) == 0 {
		o.Shapes = []tuner.Shape{tuner.Pebble, tuner.Tiered}
	}
	if o.Start == (tuner.Setting{}) {
		o.Start = tuner.Default
	}
	if o.Open == nil {
		o.Open, o.Unit = openModel, "pages"
	}
	return o
}

func (o TunerOptions) check() error {
	for _, h := range o.HitRates {
		if !(h >= 0 && h <= 1) {
			return fmt.Errorf("%w: hit rate %v, want 0 to 1", ErrBadOption, h)
		}
	}
	if o.Requests < 1 || o.BlockTokens < 1 || o.PromptTokens < o.BlockTokens || o.WarmTokens < int64(o.PromptTokens) {
		return fmt.Errorf("%w: %d requests of %d tokens in blocks of %d after %d tokens", ErrBadOption, o.Requests, o.PromptTokens, o.BlockTokens, o.WarmTokens)
	}
	return nil
}

// Tuner replays a workload of changing hit rates on an index: with the
// controller, with its start setting left alone, and with every static setting.
// Everything is drawn from a fixed seed. Retuning is free and at once, which
// flatters the controller a little: it is rare.
// Errors: ErrBadOption, tuner.ErrBadOption, and the target's.
func Tuner(ctx context.Context, o TunerOptions) (TunerResult, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return TunerResult{}, err
	}
	blocks := o.PromptTokens / o.BlockTokens
	warm := o.WarmTokens / int64(o.PromptTokens)
	res := TunerResult{Unit: o.Unit, Requests: o.Requests, PromptTokens: o.PromptTokens, BlockTokens: o.BlockTokens, WarmEntries: warm * int64(blocks)}
	stages := makeStages(o.HitRates, o.Requests, blocks, warm)
	for i, shape := range o.Shapes {
		r := &tunerReplay{o: o, shape: shape, stages: stages, warm: warm, blocks: blocks, replays: i}
		s, err := r.run(ctx)
		if err != nil {
			return res, fmt.Errorf("bench: %v tree: %w", shape, err)
		}
		res.Shapes = append(res.Shapes, s)
	}
	return res, nil
}

// makeStages draws the requests. The shared part of each prompt scatters by a
// tenth around the stage's hit rate.
func makeStages(rates []float64, requests, blocks int, warm int64) [][]TunerRequest {
	r := rand.New(rand.NewPCG(20, 26))
	stages := make([][]TunerRequest, len(rates))
	sequence := warm
	for i, rate := range rates {
		for range requests {
			share := math.Max(0, math.Min(1, rate+0.1*(2*r.Float64()-1)))
			stages[i] = append(stages[i], TunerRequest{
				Sequence: sequence, Prefix: r.Int64N(warm), Blocks: blocks, Cached: int(math.Round(share * float64(blocks))),
			})
			sequence++
		}
	}
	return stages
}

// tunerReplay is the work on one shape.
type tunerReplay struct {
	o       TunerOptions
	shape   tuner.Shape
	stages  [][]TunerRequest
	warm    int64
	blocks  int
	replays int // done, for progress
}

func (r *tunerReplay) run(ctx context.Context) (s TunerShape, err error) {
	s = TunerShape{Shape: r.shape.String(), Fixed: r.o.Start, Verdicts: map[string]int{}, Changes: []tuner.Decision{}, Stages: make([]TunerStage, len(r.stages))}
	statics := r.statics()
	progress := func(done int) {
		if r.o.Progress != nil {
			r.o.Progress(r.replays*(len(statics)+2)+done, len(r.o.Shapes)*(len(statics)+2))
		}
	}
	if err := r.controlled(ctx, &s); err != nil {
		return s, err
	}
	progress(1)
	fixed, err := r.static(ctx, r.o.Start)
	if err != nil {
		return s, err
	}
	progress(2)
	best := math.Inf(1)
	for i := range s.Stages {
		s.Stages[i].Fixed, s.Stages[i].BestStages = fixed[i], math.Inf(1)
	}
	for n, setting := range statics {
		costs, err := r.static(ctx, setting)
		if err != nil {
			return s, err
		}
		total := 0.0
		for i, c := range costs {
			total += c
			if st := &s.Stages[i]; c < st.BestStages {
				st.BestStages, st.BestStage = c, setting
			}
		}
		if total < best {
			best, s.BestStatic = total, setting
			for i, c := range costs {
				s.Stages[i].BestStatic = c
			}
		}
		progress(n + 3)
	}
	s.sum()
	return s, nil
}

// statics are the settings that are tried.
func (r *tunerReplay) statics() []tuner.Setting {
	if len(r.o.Statics) > 0 {
		return r.o.Statics
	}
	return r.o.Tuner.Bounds.Settings(r.shape)
}

// sum fills the totals and rounds what is shown.
func (s *TunerShape) sum() {
	n := float64(len(s.Stages))
	for i := range s.Stages {
		c := &s.Stages[i].TunerCosts
		s.Total.Controller += c.Controller / n
		s.Total.Fixed += c.Fixed / n
		s.Total.BestStatic += c.BestStatic / n
		s.Total.BestStages += c.BestStages / n
		*c = c.rounded()
	}
	s.Saving = round(1 - s.Total.Controller/s.Total.Fixed)
	s.Total = s.Total.rounded()
}

func (c TunerCosts) rounded() TunerCosts {
	return TunerCosts{round(c.Controller), round(c.Fixed), round(c.BestStatic), round(c.BestStages)}
}

// controlled replays with the controller. Between two requests is a quiet
// moment.
func (r *tunerReplay) controlled(ctx context.Context, s *TunerShape) (err error) {
	target, err := r.o.Open(ctx, r.shape, r.o.Start, r.warm, r.blocks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	t, err := tuner.New(r.o.Tuner, r.o.Start)
	if err != nil {
		return err
	}
	for i, stage := range r.stages {
		st, before, all := &s.Stages[i], target.Cost(), tuner.Counts{}
		cached := 0
		for _, req := range stage {
			counts, err := target.Serve(ctx, req)
			if err != nil {
				return err
			}
			all, cached = all.Add(counts), cached+req.Cached
			t.Observe(counts)
			s.Verdicts[t.Step(target.Tree()).Verdict.String()]++
			if d, ok := t.Pending(); ok {
				err := target.Retune(ctx, d.To)
				t.Done(d, err)
				if err != nil {
					return err
				}
				s.Changes = append(s.Changes, d)
			}
		}
		st.ExpectedHit, st.Hit = r.o.HitRates[i], round(float64(cached)/float64(len(stage)*r.blocks))
		st.Setting, st.Mix = t.Setting(), all.Mix()
		st.Controller = (target.Cost() - before) / float64(len(stage))
	}
	return nil
}

// static replays with one setting and returns the cost of a request by stage.
func (r *tunerReplay) static(ctx context.Context, setting tuner.Setting) (costs []float64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	target, err := r.o.Open(ctx, r.shape, setting, r.warm, r.blocks)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	for _, stage := range r.stages {
		before := target.Cost()
		for _, req := range stage {
			if _, err := target.Serve(ctx, req); err != nil {
				return nil, err
			}
		}
		costs = append(costs, (target.Cost()-before)/float64(len(stage)))
	}
	return costs, nil
}
