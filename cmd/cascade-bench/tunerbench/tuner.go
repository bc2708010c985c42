package tunerbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/lustre/tuner"
)

// Request is one request of a workload, as an index sees it: a chain of
// blocks whose head is stored already.
type Request struct {
	Sequence int64 // number of the chain; it is new
	Prefix   int64 // number of the chain of the warm-up that it shares its head with
	Blocks   int   // of the chain
	Cached   int   // blocks of the head; 0 to Blocks
}

// Target is an index that a workload is replayed on. One goroutine uses
// it.
type Target interface {
	// Serve finds the longest stored head of the chain, reads its entries, and
	// puts those of the other blocks. It returns what it did.
	Serve(ctx context.Context, r Request) (tuner.Counts, error)
	// Retune gives the index another setting.
	Retune(ctx context.Context, s tuner.Setting) error
	// Cost is what was spent so far, in the target's unit.
	Cost() float64
	// Tree is the index as the cost model sees it.
	Tree() tuner.Tree
	// Close gives up everything the target holds.
	Close() error
}

// Options choose a replay. The zero value is the paper's workload
// (SGLang-LSM §4.1) with blocks of 16 tokens, on the cost model.
type Options struct {
	HitRates     []float64 // expected, one for each stage
	Requests     int       // of a stage; default 1000
	PromptTokens int       // default 8192
	BlockTokens  int       // default 16
	WarmTokens   int64     // stored before the first stage; default 100 million

	Tuner tuner.Options

	// Open makes a target that holds warm chains of blocks entries each and
	// has setting s. Unit is what its costs are in. The default is the cost
	// model, in pages.
	Open func(ctx context.Context, shape tuner.Shape, s tuner.Setting, warm int64, blocks int) (Target, error)
	Unit string

	Progress func(done, total int) // called after each replay, by one goroutine; may be nil
}

// Result compares the controller with settings that stay. Costs are for
// each request, in Unit.
type Result struct {
	Unit         string  `json:"unit"`
	Requests     int     `json:"requests"` // of a stage
	PromptTokens int     `json:"prompt_tokens"`
	BlockTokens  int     `json:"block_tokens"`
	WarmEntries  int64   `json:"warm_entries"`
	Shapes       []Shape `json:"shapes"`
}

// Shape is the replay on one shape of tree.
type Shape struct {
	Shape      string        `json:"shape"`
	Fixed      tuner.Setting `json:"fixed"`
	BestStatic tuner.Setting `json:"best_static"` // of all stages together, known in hindsight
	Stages     []Stage       `json:"stages"`
	Total      Costs         `json:"total"`  // means over the stages
	Saving     float64       `json:"saving"` // of the controller over fixed, as a part of the latter

	Changes  []tuner.Decision `json:"changes"`  // that were made
	Verdicts map[string]int   `json:"verdicts"` // of all steps
}

// Stage is one stage.
type Stage struct {
	ExpectedHit float64       `json:"expected_hit"`
	Hit         float64       `json:"hit"`     // blocks found, as a part of those asked for
	Setting     tuner.Setting `json:"setting"` // the controller's at the end of the stage
	BestStage   tuner.Setting `json:"best_stage"`
	Mix         tuner.Mix     `json:"mix"`
	Costs
}

// Costs are costs for each request.
type Costs struct {
	Controller float64 `json:"controller"`
	Fixed      float64 `json:"fixed"`
	BestStatic float64 `json:"best_static"`
	BestStages float64 `json:"best_stages"` // each stage under its own best setting
}

// paperHitRates are the stages of SGLang-LSM §4.1.
var paperHitRates = []float64{0.2, 0.3, 0.5, 0.7, 0.5, 0.3, 0.1, 0.3, 0.5, 0.7}

func (o Options) withDefaults() Options {
	if len(o.HitRates) == 0 {
		o.HitRates = paperHitRates
	}
	o.Requests = cmp.Or(o.Requests, 1000)
	o.PromptTokens = cmp.Or(o.PromptTokens, 8192)
	o.BlockTokens = cmp.Or(o.BlockTokens, 16)
	o.WarmTokens = cmp.Or(o.WarmTokens, 100e6)
	if o.Open == nil {
		o.Open, o.Unit = openModel, "pages"
	}
	return o
}

func (o Options) check() error {
	if err := checkRates(o.HitRates); err != nil {
		return err
	}
	if o.Requests < 1 || o.BlockTokens < 1 || o.PromptTokens < o.BlockTokens || o.WarmTokens < int64(o.PromptTokens) {
		return fmt.Errorf("%w: %d requests of %d tokens in blocks of %d after %d tokens", kit.ErrBadOption, o.Requests, o.PromptTokens, o.BlockTokens, o.WarmTokens)
	}
	return nil
}

func checkRates(rates []float64) error {
	for _, h := range rates {
		if !(h >= 0 && h <= 1) {
			return fmt.Errorf("%w: hit rate %v, want 0 to 1", kit.ErrBadOption, h)
		}
	}
	return nil
}

// Run replays a workload of changing hit rates on two shapes of tree, Pebble's
// and a tiered one: with the controller, with its start setting left alone, and
// with every setting within the tuner's bounds. Retuning is free and at once,
// which flatters the controller a little: it is rare.
// Errors: kit.ErrBadOption, tuner.ErrBadOption, and the target's.
func Run(ctx context.Context, o Options) (Result, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return Result{}, err
	}
	blocks := o.PromptTokens / o.BlockTokens
	warm := o.WarmTokens / int64(o.PromptTokens)
	res := Result{Unit: o.Unit, Requests: o.Requests, PromptTokens: o.PromptTokens, BlockTokens: o.BlockTokens, WarmEntries: warm * int64(blocks)}
	stages := makeStages(o.HitRates, o.Requests, blocks, warm)
	total := 0
	var replays []*replay
	for _, shape := range []tuner.Shape{tuner.Pebble, tuner.Tiered} {
		r := &replay{o: o, shape: shape, stages: stages, warm: warm, blocks: blocks, statics: o.Tuner.Bounds.Settings(shape)}
		replays = append(replays, r)
		total += len(r.statics) + 2
	}
	progress := kit.Progress(total, o.Progress)
	for _, r := range replays {
		s, err := r.run(ctx, progress)
		if err != nil {
			return res, fmt.Errorf("bench: %v tree: %w", r.shape, err)
		}
		res.Shapes = append(res.Shapes, s)
	}
	return res, nil
}

// makeStages draws the requests. The shared part of each prompt scatters by a
// tenth around the stage's hit rate.
func makeStages(rates []float64, requests, blocks int, warm int64) [][]Request {
	r := rand.New(rand.NewPCG(20, 26))
	stages := make([][]Request, len(rates))
	sequence := warm
	for i, rate := range rates {
		for range requests {
			share := math.Max(0, math.Min(1, rate+0.1*(2*r.Float64()-1)))
			stages[i] = append(stages[i], Request{
				Sequence: sequence, Prefix: r.Int64N(warm), Blocks: blocks, Cached: int(math.Round(share * float64(blocks))),
			})
			sequence++
		}
	}
	return stages
}

// replay is the work on one shape.
type replay struct {
	o       Options
	shape   tuner.Shape
	stages  [][]Request
	warm    int64
	blocks  int
	statics []tuner.Setting // that are tried
}

func (r *replay) run(ctx context.Context, progress func()) (s Shape, err error) {
	s = Shape{Shape: r.shape.String(), Fixed: tuner.Default, Verdicts: map[string]int{}, Changes: []tuner.Decision{}, Stages: make([]Stage, len(r.stages))}
	if err := r.controlled(ctx, &s); err != nil {
		return s, err
	}
	progress()
	fixed, err := r.static(ctx, tuner.Default)
	if err != nil {
		return s, err
	}
	progress()
	best := math.Inf(1)
	for i := range s.Stages {
		s.Stages[i].Fixed, s.Stages[i].BestStages = fixed[i], math.Inf(1)
	}
	for _, setting := range r.statics {
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
		progress()
	}
	s.sum()
	return s, nil
}

// sum fills the totals and rounds what is shown.
func (s *Shape) sum() {
	n := float64(len(s.Stages))
	for i := range s.Stages {
		c := &s.Stages[i].Costs
		s.Total.Controller += c.Controller / n
		s.Total.Fixed += c.Fixed / n
		s.Total.BestStatic += c.BestStatic / n
		s.Total.BestStages += c.BestStages / n
		*c = c.rounded()
	}
	s.Saving = kit.Round(1 - s.Total.Controller/s.Total.Fixed)
	s.Total = s.Total.rounded()
}

func (c Costs) rounded() Costs {
	return Costs{kit.Round(c.Controller), kit.Round(c.Fixed), kit.Round(c.BestStatic), kit.Round(c.BestStages)}
}

// serve replays all stages on a target with the given setting and returns the
// cost of a request by stage. served is called after each request.
func (r *replay) serve(ctx context.Context, s tuner.Setting, served func(Target, tuner.Counts) error) (costs []float64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	target, err := r.o.Open(ctx, r.shape, s, r.warm, r.blocks)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	for _, stage := range r.stages {
		before := target.Cost()
		for _, req := range stage {
			counts, err := target.Serve(ctx, req)
			if err == nil {
				err = served(target, counts)
			}
			if err != nil {
				return nil, err
			}
		}
		costs = append(costs, (target.Cost()-before)/float64(len(stage)))
	}
	return costs, nil
}

// static replays with one setting.
func (r *replay) static(ctx context.Context, s tuner.Setting) ([]float64, error) {
	return r.serve(ctx, s, func(Target, tuner.Counts) error { return nil })
}

// controlled replays with the controller, which may act after each request.
func (r *replay) controlled(ctx context.Context, s *Shape) error {
	t, err := tuner.New(r.o.Tuner, tuner.Default)
	if err != nil {
		return err
	}
	served, all := 0, tuner.Counts{}
	costs, err := r.serve(ctx, tuner.Default, func(target Target, c tuner.Counts) error {
		all = all.Add(c)
		t.Observe(c)
		s.Verdicts[t.Step(target.Tree()).Verdict.String()]++
		if d, ok := t.Pending(); ok {
			err := target.Retune(ctx, d.To)
			t.Done(d, err)
			if err != nil {
				return err
			}
			s.Changes = append(s.Changes, d)
		}
		if served++; served%r.o.Requests == 0 { // the end of a stage
			st := &s.Stages[served/r.o.Requests-1]
			st.Setting, st.Mix = t.Setting(), all.Mix()
			all = tuner.Counts{}
		}
		return nil
	})
	for i, c := range costs {
		st, cached := &s.Stages[i], 0
		for _, req := range r.stages[i] {
			cached += req.Cached
		}
		st.Controller = c
		st.ExpectedHit, st.Hit = r.o.HitRates[i], kit.Round(float64(cached)/float64(r.o.Requests*r.blocks))
	}
	return err
}
