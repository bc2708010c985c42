package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade/policy"
	"cascadekv/internal/trace"
)

// Min is the name of MIN among the policies.
const Min = "min"

// Policies returns the words that Options.Policies may have beside Min. The caller owns the
// slice.
func Policies() []string { return policy.AllNames() }

// leastCapacity is below one block of any trace.
const leastCapacity = 1e-12

var (
	// ErrBadOptions marks options with which nothing can be simulated.
	ErrBadOptions = errors.New("simulate: bad options")

	// ErrNoBlocks: the trace asks for no block.
	ErrNoBlocks = errors.New("simulate: the trace asks for no block")
)

// Options say what to simulate.
type Options struct {
	Trace    trace.Source // read once; the caller's to close. Required.
	Requests int          // read at most so many; 0: all

	// Hints: policies get those of the trace. WrongHints is the share of the requests, 0 to 1, that have
	// some by chance instead, which say nothing.
	Hints      bool
	WrongHints float64

	// Policies are simulated beside LRU and MIN, with which all are compared: words
	// of the function Policies, or Min.
	Policies []string

	// Capacities are those of the tier, as shares of the trace's distinct blocks,
	// above 0. Required.
	Capacities []float64

	BlockTokens int    // default trace.BlockTokens
	Workers     int    // simulations at once, each with a tier of its own; default: one for each processor
	Dir         string // of the temporary file; default: the system's
	TTFT        *TTFTModel

	// Progress is called now and then, by one goroutine at a time, with how many of
	// the requests of all simulations are done.
	Progress func(done, total int)
}

// withDefaults is for one tier, and common for ladders too.
func (o Options) withDefaults() (Options, error) {
	o, err := o.common()
	if err != nil {
		return o, err
	}
	order := []string{policy.LRU}
	for _, name := range o.Policies {
		if name == Min || slices.Contains(order, name) {
			continue
		}
		if _, err := policy.New(name, 0); err != nil {
			return o, fmt.Errorf("%w: %w, or %s", ErrBadOptions, err, Min)
		}
		order = append(order, name)
	}
	o.Policies = append(order, Min)
	switch {
	case len(o.Capacities) == 0:
		return o, fmt.Errorf("%w: it needs a capacity", ErrBadOptions)
	case !(slices.Min(o.Capacities) >= leastCapacity):
		return o, fmt.Errorf("%w: a capacity of %g of the blocks; give %g or more", ErrBadOptions, slices.Min(o.Capacities), leastCapacity)
	case o.TTFT != nil && len(o.TTFT.Loads) != 1:
		return o, fmt.Errorf("%w: %d load rates for one tier", ErrBadOptions, len(o.TTFT.Loads))
	}
	return o, nil
}

func (o Options) common() (Options, error) {
	if o.BlockTokens == 0 {
		o.BlockTokens = trace.BlockTokens
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Progress == nil {
		o.Progress = func(int, int) {}
	}
	switch {
	case o.Trace == nil:
		return o, fmt.Errorf("%w: it needs a trace", ErrBadOptions)
	case !(o.WrongHints >= 0 && o.WrongHints <= 1) || o.WrongHints > 0 && !o.Hints:
		return o, fmt.Errorf("%w: a share of %v of the hints is wrong; choose 0 to 1, with hints", ErrBadOptions, o.WrongHints)
	case o.BlockTokens < 0:
		return o, fmt.Errorf("%w: blocks of %d tokens; choose 1 or more", ErrBadOptions, o.BlockTokens)
	case o.TTFT != nil:
		return o, o.TTFT.Validate()
	}
	return o, nil
}

// Run simulates each policy at each capacity. It needs room for a temporary file of 8 bytes
// a reference. Errors: ErrBadOptions, ErrNoBlocks, ctx's cause, those of the trace and the file.
func Run(ctx context.Context, o Options) (r Result, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return Result{}, err
	}
	start := time.Now()
	s, err := newSpool(ctx, o.Trace, o.Requests, o.Dir)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if s.references == 0 {
		return Result{}, ErrNoBlocks
	}
	if err := s.linkUses(ctx); err != nil {
		return Result{}, err
	}
	g := newGrid(o, s)
	if err := g.run(ctx); err != nil {
		return Result{}, err
	}
	r = g.result()
	r.Seconds = time.Since(start).Seconds()
	return r, nil
}

// grid is all policies at all capacities, or all ladders.
type grid struct {
	o     Options
	s     *spool
	cells []*cell // by policy, then by capacity; or by ladder

	mu struct {
		sync.Mutex
		done int // requests
	}
}

// cell is one policy at one capacity, or one ladder.
type cell struct {
	policy   string
	levels   []Level // of a ladder, which has no policy of its own
	capacity int     // blocks
	hits     int64
	used     time.Duration // processor time
	ttft     *Quantiles
	end      float64 // of the last request, in seconds since the first, as modelled

	hitsOf, entered []int64 // of the levels of a ladder
}

func newGrid(o Options, s *spool) *grid {
	g := &grid{o: o, s: s}
	for _, name := range o.Policies {
		for _, share := range o.Capacities {
			g.cells = append(g.cells, &cell{policy: name, capacity: max(1, int(share*float64(s.unique)))})
		}
	}
	return g
}

// run simulates all cells, those of the largest tiers first: they take longest.
func (g *grid) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo := make(chan *cell, len(g.cells))
	for _, c := range slices.SortedStableFunc(slices.Values(g.cells), func(a, b *cell) int { return b.capacity - a.capacity }) {
		todo <- c
	}
	close(todo)
	var workers sync.WaitGroup
	for range min(g.o.Workers, len(g.cells)) {
		workers.Go(func() {
			for c := range todo {
				if err := g.simulate(ctx, c); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// progressRequests is how many requests are done between calls of Options.Progress.
const progressRequests = 1 << 10

func (g *grid) simulate(ctx context.Context, c *cell) error {
	runtime.LockOSThread() // whose processor time is measured
	defer runtime.UnlockOSThread()
	start := processorTime()
	t, err := g.tierOf(c)
	if err != nil {
		return err
	}
	var times *ttfts
	if g.o.TTFT != nil {
		times = newTTFTs(*g.o.TTFT, g.o.BlockTokens)
	}
	in := g.s.read(c.policy == Min)
	in.hints, in.wrong = g.o.Hints, g.o.WrongHints
	for n := 0; ; n++ {
		if n%progressRequests == 0 && n > 0 || n == g.s.requests {
			g.progress(n - (n-1)/progressRequests*progressRequests)
			if ctx.Err() != nil {
				return nil // the caller has the cause
			}
		}
		r, err := in.advance()
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		c.hits += int64(t.serve(r))
		if times != nil {
			times.add(r.at, r.tokens, t.head())
		}
	}
	c.used = processorTime() - start
	if times != nil {
		c.ttft, c.end = times.quantiles(), times.end
	}
	if l, ok := t.(*ladder); ok {
		c.count(l)
	}
	return nil
}

// processorTime is the processor time of the calling thread: time in which other threads run is
// not in it. It is 0 where the system has no such clock.
func processorTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

func (g *grid) tierOf(c *cell) (simulated, error) {
	if c.policy == "" {
		return newLadder(c.levels, g.s.unique)
	}
	if c.policy == Min {
		return newMinimum(c.capacity, g.s.unique), nil
	}
	p, err := policy.New(c.policy, int64(c.capacity)*blockBytes)
	if err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	return newTier(p, c.capacity, g.s.unique), nil
}

func (g *grid) progress(requests int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.done += requests
	g.o.Progress(g.mu.done, g.s.requests*len(g.cells))
}
