package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/trace"
)

// DefaultBlockBytes is the size of a block unless Options say otherwise.
const DefaultBlockBytes = 64 << 10

// Options say what to replay against what.
type Options struct {
	// Trace returns the trace from its start; called once per run. A source
	// that is an io.Closer is closed after the run. Required.
	Trace func() (trace.Source, error)

	// NewTarget returns a target for one run. Required. The run closes it,
	// with a context that outlives a cancellation of the run's own.
	NewTarget func(ctx context.Context, policy string) (Target, error)

	Policies    []string // one run each, in this order; none: one run with policy ""
	Name        string   // of the trace, for reports
	BlockBytes  int      // default DefaultBlockBytes
	BlockTokens int      // default trace.BlockTokens
	Requests    int      // replay at most so many; 0: all
	Workers     int      // requests in flight; default 1, the only value whose hits are reproducible

	// Clock, if not nil, goes by the trace: each request moves it on to its own time. A run
	// begins where it stands.
	Clock *Clock

	// Paced has each request wait for its time in the trace, from the start of the run on. One
	// for which there is no worker then is late, and the next ones make up for it.
	Paced bool

	// Progress is called after every request, by one goroutine at a time.
	Progress func(Progress)
}

// Progress is how far a run is.
type Progress struct {
	Policy            string
	Requests          int // replayed so far in this run
	Blocks, HitBlocks int64
	ReachableBlocks   int64 // a cache without limits would have hit, of the requests replayed so far
	WrongBytes        int64
}

func (o Options) withDefaults() (Options, error) {
	if o.BlockBytes == 0 {
		o.BlockBytes = DefaultBlockBytes
	}
	if o.BlockTokens == 0 {
		o.BlockTokens = trace.BlockTokens
	}
	o.Workers = max(o.Workers, 1)
	if len(o.Policies) == 0 {
		o.Policies = []string{""}
	}
	switch {
	case o.Trace == nil || o.NewTarget == nil:
		return o, fmt.Errorf("%w: it needs a trace and a target", ErrBadOptions)
	case o.BlockBytes < 0 || o.BlockBytes > block.MaxSize:
		return o, fmt.Errorf("%w: blocks of %d bytes; choose 1 to %d", ErrBadOptions, o.BlockBytes, block.MaxSize)
	case o.BlockTokens < 0:
		return o, fmt.Errorf("%w: blocks of %d tokens; choose 1 or more", ErrBadOptions, o.BlockTokens)
	}
	return o, nil
}

// Run replays the trace once per policy and returns the results of the runs
// that ended, those before an error included. A run that ctx ends is not among
// them. Wrong bytes are no error here: they are in the results.
func Run(ctx context.Context, o Options) ([]Result, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	var results []Result
	for _, policy := range o.Policies {
		r, err := runOne(ctx, o, policy)
		if err != nil {
			return results, err
		}
		results = append(results, r)
	}
	return results, nil
}

// runOne replays the trace once.
func runOne(ctx context.Context, o Options, policy string) (r Result, err error) {
	src, err := o.Trace()
	if err != nil {
		return Result{}, err
	}
	if c, ok := src.(io.Closer); ok {
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	target, err := o.NewTarget(ctx, policy)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, target.Close(context.WithoutCancel(ctx))) }()

	sum := newTotals(policy, o.Progress)
	reach := reach{seen: map[uint64]struct{}{}}
	start := time.Now()
	if err := drive(ctx, o, src, target, sum, &reach); err != nil {
		return Result{}, err
	}
	seconds := time.Since(start).Seconds()
	st, err := target.Stats(ctx)
	if err != nil {
		return Result{}, err
	}
	if r = sum.result(o.Workers, o.BlockBytes); r.Blocks == 0 {
		return Result{}, fmt.Errorf("%w: check %q", ErrNoTrace, o.Name)
	}
	r.Trace, r.Seconds = o.Name, seconds
	r.UniqueBlocks = int64(len(reach.seen))
	r.UnlimitedHitRatio = ratio(reach.hits, r.Blocks)
	r.DedupRatio = ratio(r.Blocks, r.UniqueBlocks)
	r.describe(st)
	return r, nil
}

// describe adds the target's statistics.
func (r *Result) describe(st TargetStats) {
	if st.Policy != "" {
		r.Policy = st.Policy
	}
	r.CapacityBytes, r.LostRequests = st.CapacityBytes, st.LostRequests
	r.BytesReferenced, r.BytesStored = st.BytesReferenced, st.BytesStored
	r.StoreDedupRatio = ratio(st.BytesReferenced, st.BytesStored)
	r.TierOrder = st.Tiers
	for _, name := range st.Tiers {
		if _, ok := r.Tiers[name]; !ok {
			r.Tiers[name] = TierResult{} // tiers without a hit are listed too
		}
	}
	var others []string
	for name := range r.Tiers {
		if !slices.Contains(r.TierOrder, name) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	r.TierOrder = append(slices.Clip(r.TierOrder), others...)
}

// job is one request on its way to a worker and back.
type job struct {
	trace.Request
	at        time.Duration // its time, since the first
	reachable int64         // its hits in a cache without limits
}

// reach computes what a cache without limits would reach, in the trace's order.
type reach struct {
	seen map[uint64]struct{}
	hits int64
}

// add returns how many of the request's blocks such a cache would hit.
func (a *reach) add(req *trace.Request) int64 {
	before, prefix := a.hits, true
	for _, h := range req.Hashes {
		if _, ok := a.seen[h]; !ok {
			prefix = false
			a.seen[h] = struct{}{}
		} else if prefix {
			a.hits++
		}
	}
	return a.hits - before
}

// drive hands the trace's requests to the workers.
func drive(ctx context.Context, o Options, src trace.Source, target Target, sum *totals, reach *reach) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo := make(chan *job, o.Workers)
	free := make(chan *job, 2*o.Workers+1)
	for range cap(free) {
		free <- new(job)
	}
	times := newTimes(o.Clock)
	var workers sync.WaitGroup
	for range o.Workers {
		workers.Go(func() {
			if err := work(ctx, o, target, sum, times, todo, free); err != nil {
				cancel(err)
			}
		})
	}
	err := feed(ctx, o, src, times, reach, todo, free)
	close(todo)
	workers.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// feed reads the trace until its end, the limit, or ctx's end.
func feed(ctx context.Context, o Options, src trace.Source, times *times, reach *reach, todo chan<- *job, free <-chan *job) error {
	for n := 0; o.Requests <= 0 || n < o.Requests; n++ {
		var j *job
		select {
		case j = <-free:
		case <-ctx.Done():
			return nil
		}
		if err := src.Next(&j.Request); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if j.at = times.of(&j.Request); o.Paced {
			times.wait(ctx, j.at)
		}
		j.reachable = reach.add(&j.Request)
		select {
		case todo <- j:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}
