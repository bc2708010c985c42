package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

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
	Start tuner.Setting // of both; default tuner.Default

	Progress func(done, total int) // called after each replay, by one goroutine; may be nil
}

// AblationResult compares both. Ratios are on / off, and below 1 where tuning
// pays: medians over the rounds, each of which has both.
type AblationResult struct {
	Blocks  int             `json:"blocks"` // at the start
	Rounds  int             `json:"rounds"`
	Cache   int64           `json:"cache_bytes"`
	Off     tuner.Setting   `json:"off"`
	Machine Machine         `json:"machine"`
	Phases  []AblationPhase `json:"phases"`
	Total   AblationRatios  `json:"total"`
	Changes []string        `json:"changes"` // decisions that were made, in the last round
}

// AblationPhase is one phase.
type AblationPhase struct {
	Kind     string         `json:"kind"`
	Requests int            `json:"requests"`
	Mix      tuner.Mix      `json:"mix"`
	On       AblationWork   `json:"on"` // medians over the rounds
	Off      AblationWork   `json:"off"`
	Ratios   AblationRatios `json:"ratios"`
}

// AblationWork is what a phase took on one side, all that it set going included.
type AblationWork struct {
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

// AblationRatios are on / off.
type AblationRatios struct {
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`
	Written float64 `json:"written"`
	Pages   float64 `json:"pages"`
	Runs    float64 `json:"runs"`
}

// The kinds of phase. All chains have the same length.
const ablationChain = 64

// ablationKind is work of one kind: shares of requests, of which the rest are
// chains that are all new.
type ablationKind struct {
	requests int
	points   float64 // for one block that is there
	ranges   float64 // for a chain that is
	fresh    int     // blocks of a new chain
}

var ablationKinds = map[string]ablationKind{
	"write": {2_000, 0, 0.05, ablationChain},
	"point": {150_000, 0.97, 0, 1},
	"range": {80_000, 0, 0.98, 2},
}

func (o AblationOptions) withDefaults() AblationOptions {
	if o.Dir == "" {
		o.Dir = os.TempDir()
	}
	if o.Blocks == 0 {
		o.Blocks = 400_000
	}
	if o.Scale == 0 {
		o.Scale = 1
	}
	if len(o.Phases) == 0 {
		o.Phases = []string{"write", "point", "range", "write"}
	}
	if o.Rounds == 0 {
		o.Rounds = 3
	}
	if o.Cache == 0 {
		o.Cache = 128 << 20
	}
	if o.Start == (tuner.Setting{}) {
		o.Start = tuner.Default
	}
	return o
}

func (o AblationOptions) check() error {
	for _, p := range o.Phases {
		if _, ok := ablationKinds[p]; !ok {
			return fmt.Errorf("%w: phase %q, want write, point or range", ErrBadOption, p)
		}
	}
	if o.Blocks < ablationChain || o.Rounds < 1 || !(o.Scale > 0) || o.Cache < 1<<20 {
		return fmt.Errorf("%w: %d blocks (%d or more), %d rounds (1 or more), scale %v (above 0), cache of %d bytes (1 MiB or more)",
			ErrBadOption, o.Blocks, ablationChain, o.Rounds, o.Scale, o.Cache)
	}
	return nil
}

// Ablation replays phases of different work, drawn from a fixed seed, on a real
// index that is tuned and on one that is not, in turns. Errors: ErrBadOption,
// tuner.ErrBadOption, those of the index and of the file system.
func Ablation(ctx context.Context, o AblationOptions) (*AblationResult, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	a := &ablation{o: o, warm: int64(o.Blocks / ablationChain)}
	res := &AblationResult{Blocks: int(a.warm) * ablationChain, Rounds: o.Rounds, Cache: o.Cache, Off: o.Start, Machine: readMachine(), Changes: []string{}}
	for i, kind := range o.Phases {
		a.stages = append(a.stages, a.draw(kind, uint64(i)))
	}
	var on, off [][]AblationWork // by round, then phase
	for round := range o.Rounds {
		for turn := range 2 {
			tuned := (round+turn)%2 == 0
			work, err := a.replay(ctx, tuned)
			if err != nil {
				return nil, fmt.Errorf("bench: round %d, tuning %v: %w", round+1, tuned, err)
			}
			if tuned {
				on = append(on, work)
			} else {
				off = append(off, work)
			}
			if o.Progress != nil {
				o.Progress(2*round+turn+1, 2*o.Rounds)
			}
		}
	}
	for i, kind := range o.Phases {
		p := AblationPhase{Kind: kind, Requests: len(a.stages[i]), Mix: a.mixes[i].Mix()}
		one := func(all [][]AblationWork) (of []AblationWork) {
			for _, r := range all {
				of = append(of, r[i])
			}
			return of
		}
		p.On, p.Off, p.Ratios = medianWork(one(on)), medianWork(one(off)), ratiosOf(one(on), one(off))
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
	stages  [][]TunerRequest
	next    int64            // number of the next new chain
	mixes   []tuner.Counts   // of the last replay, by phase
	changes []tuner.Decision // of the last tuned replay
}

// draw makes the requests of a phase.
func (a *ablation) draw(kind string, seed uint64) (all []TunerRequest) {
	k, r := ablationKinds[kind], rand.New(rand.NewPCG(20, 27+seed))
	for range max(1, int(float64(k.requests)*a.o.Scale)) {
		req := TunerRequest{Prefix: r.Int64N(a.warm)}
		switch p := r.Float64(); {
		case p < k.points:
			req.Blocks, req.Cached = 1, 1
		case p < k.points+k.ranges:
			req.Blocks, req.Cached = ablationChain, ablationChain
		default:
			req.Blocks, req.Sequence = k.fresh, a.warm+a.next
			a.next++
		}
		all = append(all, req)
	}
	return all
}

// ablationStep is how many operations pass between two looks of the tuner, and
// so between two samples of the tree's form: a part of its window.
const ablationStep = 4096

// replay runs all phases on a new index.
func (a *ablation) replay(ctx context.Context, tuned bool) (work []AblationWork, err error) {
	target, err := openTunerIndex(ctx, a.o.Dir, a.o.Cache, a.o.Start, a.warm, ablationChain)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	t, err := tuner.New(a.o.Tuner, a.o.Start)
	if err != nil {
		return nil, err
	}
	r := &ablationReplay{ablation: a, target: target, tuner: t, tuned: tuned}
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

// ablationReplay is one replay.
type ablationReplay struct {
	*ablation
	target   *tunerIndex
	tuner    *tuner.Tuner
	tuned    bool
	unseen   tuner.Counts // by the tuner
	runs     []float64    // samples of a phase
	changing float64      // seconds of a phase
}

func (r *ablationReplay) phase(ctx context.Context, stage []TunerRequest) (w AblationWork, err error) {
	written, err := writtenBytes()
	if err != nil {
		return w, err
	}
	spent, cpu, before := r.target.Cost(), cpuTime(), r.target.x.Stats()
	var all tuner.Counts
	r.runs, r.changing = nil, 0
	for _, req := range stage {
		c, err := r.target.Serve(ctx, req)
		if err != nil {
			return w, err
		}
		all, r.unseen = all.Add(c), r.unseen.Add(c)
		if r.unseen.Ops() >= ablationStep {
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
	w.CPU = (cpuTime() - cpu).Seconds()
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
func (r *ablationReplay) step(ctx context.Context) error {
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
func writtenBytes() (int64, error) {
	p, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	for line := range strings.Lines(string(p)) {
		if n, ok := strings.CutPrefix(line, "wchar: "); ok {
			return strconv.ParseInt(strings.TrimSpace(n), 10, 64)
		}
	}
	return 0, fmt.Errorf("%w: /proc/self/io does not tell what was written", ErrWrong)
}

func workOf(all []AblationWork, of func(AblationWork) float64) (out []float64) {
	for _, w := range all {
		out = append(out, of(w))
	}
	return out
}

// What of a work is compared.
var (
	workSeconds = func(w AblationWork) float64 { return w.Seconds }
	workCPU     = func(w AblationWork) float64 { return w.CPU }
	workWritten = func(w AblationWork) float64 { return w.Written }
	workPages   = func(w AblationWork) float64 { return w.Pages }
	workRuns    = func(w AblationWork) float64 { return w.Runs }
)

func medianWork(all []AblationWork) AblationWork {
	of := func(f func(AblationWork) float64) float64 { return round(median(workOf(all, f))) }
	last := all[len(all)-1]
	return AblationWork{
		Setting: last.Setting, Searches: last.Searches, Seconds: of(workSeconds), CPU: of(workCPU), Written: of(workWritten),
		PerPut: of(func(w AblationWork) float64 { return w.PerPut }), Pages: of(workPages), Runs: of(workRuns),
		Loaded: of(func(w AblationWork) float64 { return w.Loaded }), Changing: of(func(w AblationWork) float64 { return w.Changing }),
	}
}

func ratiosOf(on, off []AblationWork) AblationRatios {
	of := func(f func(AblationWork) float64) float64 {
		return round(median(ratios(workOf(on, f), workOf(off, f))))
	}
	return AblationRatios{Seconds: of(workSeconds), CPU: of(workCPU), Written: of(workWritten), Pages: of(workPages), Runs: of(workRuns)}
}

// sums are the phases of each round together; pages and runs are for each search.
func sums(rounds [][]AblationWork) (all []AblationWork) {
	for _, phases := range rounds {
		var sum AblationWork
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
