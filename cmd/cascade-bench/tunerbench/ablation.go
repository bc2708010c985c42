package tunerbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/prometheus/procfs"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/lustre/tuner"
)

// AblationOptions choose a comparison of an index that is shaped for its work
// with one that keeps its shape. The zero value takes about a minute.
type AblationOptions struct {
	Dir    string   // on a local disk; folders are made in it and removed
	Blocks int      // stored at the start; default 400,000, each with a name
	Scale  float64  // of the lengths of all phases; default 1
	Phases []string // default write, point, range, write
	Rounds int      // default 3
	Cache  int64    // bytes of the index's cache; default 128 MiB, as a rank's

	Tuner tuner.Options

	Progress func(done, total int) // called after each replay, by one goroutine; may be nil
}

// AblationResult compares both. Ratios are on / off, and below 1 where tuning
// pays: medians over the rounds, each of which has both.
type AblationResult struct {
	Blocks  int           `json:"blocks"` // at the start
	Rounds  int           `json:"rounds"`
	Cache   int64         `json:"cache_bytes"`
	Off     tuner.Setting `json:"off"`
	Machine kit.Machine   `json:"machine"`
	Phases  []Phase       `json:"phases"`
	Total   WorkRatios    `json:"total"`
	Changes []string      `json:"changes"` // decisions that were made, in the last round
}

// Phase is one phase.
type Phase struct {
	Kind     string     `json:"kind"`
	Requests int        `json:"requests"`
	Mix      tuner.Mix  `json:"mix"`
	On       Work       `json:"on"` // medians over the rounds
	Off      Work       `json:"off"`
	Ratios   WorkRatios `json:"ratios"`
}

// Work is what a phase took on one side, all that it set going included.
type Work struct {
	Setting  string  `json:"setting"`       // at its end, in the last round
	Seconds  float64 `json:"seconds"`       // of requests and changes of shape
	Changing float64 `json:"changing_s"`    // of these, of changes of shape
	CPU      float64 `json:"cpu_s"`         // of the process, until the index rests
	Written  float64 `json:"written_bytes"` // by the process, likewise
	PerPut   float64 `json:"written_for_each_put"`
	Pages    float64 `json:"pages_for_each_search"`        // that were asked for; until the requests end
	Loaded   float64 `json:"pages_loaded_for_each_search"` // of these, that were not in the cache
	Runs     float64 `json:"runs_of_a_search"`             // that one may meet, mean over the phase
	Searches uint64  `json:"searches"`
}

// WorkRatios are on / off.
type WorkRatios struct {
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`
	Written float64 `json:"written"`
	Pages   float64 `json:"pages"`
	Runs    float64 `json:"runs"`
}

// The kinds of phase. All chains have the same length.
const chainBlocks = 64

// kind is work of one kind: shares of requests, of which the rest are
// chains that are all new.
type kind struct {
	requests int
	points   float64 // for one block that is there
	ranges   float64 // for a chain that is
	fresh    int     // blocks of a new chain
}

var kinds = map[string]kind{
	"write": {2_000, 0, 0.05, chainBlocks},
	"point": {150_000, 0.97, 0, 1},
	"range": {80_000, 0, 0.98, 2},
}

func (o AblationOptions) withDefaults() AblationOptions {
	if len(o.Phases) == 0 {
		o.Phases = []string{"write", "point", "range", "write"}
	}
	o.Blocks = cmp.Or(o.Blocks, 400_000)
	o.Scale = cmp.Or(o.Scale, 1)
	o.Rounds = cmp.Or(o.Rounds, 3)
	o.Cache = cmp.Or(o.Cache, 128<<20)
	return o
}

func (o AblationOptions) check() error {
	for _, p := range o.Phases {
		if _, ok := kinds[p]; !ok {
			return fmt.Errorf("%w: phase %q, want write, point or range", kit.ErrBadOption, p)
		}
	}
	if o.Blocks < chainBlocks || o.Rounds < 1 || !(o.Scale > 0) || o.Cache < 1<<20 {
		return fmt.Errorf("%w: %d blocks (%d or more), %d rounds (1 or more), scale %v (above 0), cache of %d bytes (1 MiB or more)",
			kit.ErrBadOption, o.Blocks, chainBlocks, o.Rounds, o.Scale, o.Cache)
	}
	return nil
}

// Ablation replays phases of different work, drawn from a fixed seed, on a real
// index that is tuned and on one that is not, in turns. Errors: kit.ErrBadOption,
// tuner.ErrBadOption, those of the index and of the file system.
func Ablation(ctx context.Context, o AblationOptions) (*AblationResult, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	a := &ablation{o: o, warm: int64(o.Blocks / chainBlocks)}
	res := &AblationResult{Blocks: int(a.warm) * chainBlocks, Rounds: o.Rounds, Cache: o.Cache, Off: tuner.Default, Machine: kit.ReadMachine(), Changes: []string{}}
	for i, kind := range o.Phases {
		a.stages = append(a.stages, a.draw(kind, uint64(i)))
	}
	progress := kit.Progress(2*o.Rounds, o.Progress)
	var on, off [][]Work // by round, then phase
	for round := range o.Rounds {
		for side := range kit.Order(round, 2) {
			tuned := side == 0
			work, err := a.replay(ctx, tuned)
			if err != nil {
				return nil, fmt.Errorf("bench: round %d, tuning %v: %w", round+1, tuned, err)
			}
			if tuned {
				on = append(on, work)
			} else {
				off = append(off, work)
			}
			progress()
		}
	}
	for i, kind := range o.Phases {
		p := Phase{Kind: kind, Requests: len(a.stages[i]), Mix: a.mixes[i].Mix()}
		one := func(all [][]Work) (of []Work) {
			for _, r := range all {
				of = append(of, r[i])
			}
			return of
		}
		p.On, p.Off, p.Ratios = medianWork(one(on), medians), medianWork(one(off), medians), ratiosOf(one(on), one(off))
		res.Phases = append(res.Phases, p)
	}
	res.Total = ratiosOf(sums(on), sums(off))
	for _, d := range a.changes {
		res.Changes = append(res.Changes, d.String())
	}
	return res, nil
}

// ablation is the work of one Ablation.
type ablation struct {
	o       AblationOptions
	warm    int64 // chains
	stages  [][]Request
	next    int64            // number of the next new chain
	mixes   []tuner.Counts   // of the last replay, by phase
	changes []tuner.Decision // of the last tuned replay
}

// draw makes the requests of a phase.
func (a *ablation) draw(kind string, seed uint64) (all []Request) {
	k, r := kinds[kind], rand.New(rand.NewPCG(20, 27+seed))
	for range max(1, int(float64(k.requests)*a.o.Scale)) {
		req := Request{Prefix: r.Int64N(a.warm)}
		switch p := r.Float64(); {
		case p < k.points:
			req.Blocks, req.Cached = 1, 1
		case p < k.points+k.ranges:
			req.Blocks, req.Cached = chainBlocks, chainBlocks
		default:
			req.Blocks, req.Sequence = k.fresh, a.warm+a.next
			a.next++
		}
		all = append(all, req)
	}
	return all
}

// stepOps is how many operations pass between two looks of the tuner, and
// so between two samples of the tree's form: a part of its window.
const stepOps = 4096

// replay runs all phases on a new index.
func (a *ablation) replay(ctx context.Context, tuned bool) (work []Work, err error) {
	target, err := openIndex(ctx, a.o.Dir, a.o.Cache, tuner.Default, a.warm, chainBlocks)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	t, err := tuner.New(a.o.Tuner, tuner.Default)
	if err != nil {
		return nil, err
	}
	r := &realReplay{ablation: a, target: target, tuner: t, tuned: tuned}
	a.mixes = nil
	if tuned {
		a.changes = nil
	}
	for _, stage := range a.stages {
		w, err := r.phase(ctx, stage)
		if err != nil {
			return nil, err
		}
		work = append(work, w)
	}
	return work, nil
}

// realReplay is one replay.
type realReplay struct {
	*ablation
	target   *indexTarget
	tuner    *tuner.Tuner
	tuned    bool
	unseen   tuner.Counts // by the tuner
	runs     []float64    // samples of a phase
	changing float64      // seconds of a phase
}

func (r *realReplay) phase(ctx context.Context, stage []Request) (w Work, err error) {
	written, err := writtenBytes()
	if err != nil {
		return w, err
	}
	spent, cpu, before := r.target.Cost(), kit.CPUTime(), r.target.x.Stats()
	var all tuner.Counts
	r.runs, r.changing = nil, 0
	for _, req := range stage {
		c, err := r.target.Serve(ctx, req)
		if err != nil {
			return w, err
		}
		all, r.unseen = all.Add(c), r.unseen.Add(c)
		if r.unseen.Ops() >= stepOps {
			if err := r.step(ctx); err != nil {
				return w, err
			}
		}
	}
	w.Seconds, w.Changing = r.target.Cost()-spent, r.changing
	after := r.target.x.Stats()
	if err := r.target.settle(ctx); err != nil {
		return w, err
	}
	w.CPU = (kit.CPUTime() - cpu).Seconds()
	now, err := writtenBytes()
	if err != nil {
		return w, err
	}
	w.Setting = tuner.Setting{T: after.SizeRatio, K: after.Runs}.String()
	w.Written = float64(now - written)
	w.PerPut = w.Written / float64(all.Puts)
	w.Searches = after.Points + after.Ranges + after.Absent - before.Points - before.Ranges - before.Absent
	w.Pages = float64(after.PageHits+after.PageMisses-before.PageHits-before.PageMisses) / float64(w.Searches)
	w.Loaded = float64(after.PageMisses-before.PageMisses) / float64(w.Searches)
	for _, n := range r.runs {
		w.Runs += n / float64(len(r.runs))
	}
	r.mixes = append(r.mixes, all)
	return w, nil
}

// step lets the tuner judge, and makes its change at once: the replay has no
// quiet moments.
func (r *realReplay) step(ctx context.Context) error {
	s := r.target.x.Stats()
	r.runs = append(r.runs, float64(s.ReadAmp))
	r.tuner.Observe(r.unseen)
	r.unseen = tuner.Counts{}
	if !r.tuned {
		return nil
	}
	r.tuner.Step(r.target.Tree())
	d, ok := r.tuner.Pending()
	if !ok {
		return nil
	}
	before := r.target.Cost()
	err := r.target.Retune(ctx, d.To)
	r.changing += r.target.Cost() - before
	r.tuner.Done(d, err)
	r.changes = append(r.changes, d)
	return err
}

// writtenBytes is what this process has written to files so far.
func writtenBytes() (uint64, error) {
	self, err := procfs.Self()
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	io, err := self.IO()
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	return io.WChar, nil
}

// compared are the parts of a work of which there are ratios, in the order of
// WorkRatios; medians are all that the rounds differ in.
func compared(w *Work) []*float64 {
	return []*float64{&w.Seconds, &w.CPU, &w.Written, &w.Pages, &w.Runs}
}

func medians(w *Work) []*float64 {
	return append(compared(w), &w.Changing, &w.PerPut, &w.Loaded)
}

// column is one part of the work of each round.
func column[W any](all []W, parts func(*W) []*float64, i int) []float64 {
	out := make([]float64, len(all))
	for round, w := range all {
		out[round] = *parts(&w)[i]
	}
	return out
}

// medianWork is the last round's work, with the medians of those parts of it in which
// rounds differ.
func medianWork[W any](all []W, parts func(*W) []*float64) W {
	w := all[len(all)-1]
	for i, part := range parts(&w) {
		*part = kit.Median(column(all, parts, i))
	}
	return w
}

func ratiosOf(on, off []Work) (r WorkRatios) {
	for i, to := range []*float64{&r.Seconds, &r.CPU, &r.Written, &r.Pages, &r.Runs} {
		_, *to = kit.Ratios(column(on, compared, i), column(off, compared, i))
	}
	return r
}

// sums are the phases of each round together; pages and runs are for each search.
func sums(rounds [][]Work) (all []Work) {
	for _, phases := range rounds {
		var sum Work
		for _, w := range phases {
			sum.Seconds += w.Seconds
			sum.CPU += w.CPU
			sum.Written += w.Written
			sum.Pages += w.Pages * float64(w.Searches)
			sum.Runs += w.Runs * float64(w.Searches)
			sum.Searches += w.Searches
		}
		sum.Pages /= float64(sum.Searches)
		sum.Runs /= float64(sum.Searches)
		all = append(all, sum)
	}
	return all
}
