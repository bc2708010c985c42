package fabricbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
)

// Errors of this package. Test with errors.Is.
var (
	ErrNoMPI    = errors.New("bench: built without MPI: build with scripts/mpi-build.sh")
	ErrNoSource = errors.New("bench: the source tree is not above the working directory nor above this program")
	ErrBuild    = errors.New("bench: a program of the benchmark can not be built")
	ErrWorld    = errors.New("bench: a world of two ranks failed")
)

// Options choose what Run measures.
type Options struct {
	MPI      string                // "openmpi", "mpich", or "none" for TCP on loopback
	Rounds   int                   // of each size; at least 1
	Progress func(done, total int) // may be nil
	Log      io.Writer             // output of builds and launchers; may be nil
}

// Size is the outcome for one size of read. Rates are of 10⁹ bytes a
// second, from the median time of a read; ratios are medians of the rounds'.
type Size struct {
	Bytes           int       `json:"bytes"`
	ReadGBps        float64   `json:"read_gbps"`
	CGBps           float64   `json:"c_gbps"`
	Ratio           float64   `json:"ratio"`
	Ratios          []float64 `json:"ratios"`
	Mode            string    `json:"mode"`                       // of both sides: "two-sided", "rget" or "stream"
	RgetGBps        float64   `json:"c_rget_gbps,omitempty"`      // C's one-sided transfer, for comparison
	ConcurrentGBps  float64   `json:"concurrent_gbps,omitempty"`  // all callers together
	ConcurrentRatio float64   `json:"concurrent_ratio,omitempty"` // against C's one transfer at a time
	ConcurrentOfOne float64   `json:"concurrent_of_one,omitempty"`
}

// Result is the outcome of Run.
type Result struct {
	Machine         kit.Machine `json:"machine"`
	MPI             string      `json:"mpi"`
	Callers         int         `json:"callers"`
	Sizes           []Size      `json:"sizes"`
	ConcurrentRatio float64     `json:"concurrent_ratio"` // the least of the sizes'
	IdleCore        float64     `json:"idle_core"`        // cores that the busier rank uses when nothing happens
}

const (
	memoryBytes = 128 << 20 // of each rank; sizes use it in turn, as blocks lie in an arena
	manyCallers = 32
	idleTime    = 2 * time.Second
)

// sizes are the reads that are measured. times fill about a tenth of a
// second.
var sizes = []struct{ bytes, times int }{{256 << 10, 1600}, {4 << 20, 128}, {64 << 20, 8}}

// Run measures reads from one rank to another, and the same transfers in C.
// Errors: kit.ErrBadOption, ErrNoSource, ErrBuild, ErrWorld, ctx's.
func Run(ctx context.Context, o Options) (*Result, error) {
	if o.Rounds < 1 {
		return nil, fmt.Errorf("%w: %d rounds", kit.ErrBadOption, o.Rounds)
	}
	if !slices.Contains([]string{"openmpi", "mpich", "none"}, o.MPI) {
		return nil, fmt.Errorf("%w: mpi %q is none of openmpi, mpich, none", kit.ErrBadOption, o.MPI)
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	programs, err := buildPair(ctx, o)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(programs.memory)
	res := &Result{Machine: kit.ReadMachine(), MPI: o.MPI, Callers: manyCallers}
	ours, err := programs.start(ctx, programs.ours)
	if err != nil {
		return nil, err
	}
	theirs, err := programs.start(ctx, programs.theirs)
	if err != nil {
		return nil, errors.Join(err, ours.quit())
	}
	d := &duel{
		o: o, pair: programs, ours: ours, theirs: theirs,
		progress: kit.Progress(len(sizes)*(o.Rounds+1), o.Progress),
	}
	err = d.run(ctx, res)
	return res, errors.Join(err, ours.quit(), theirs.quit())
}

// duel is both worlds, which take turns.
type duel struct {
	*pair
	o            Options
	ours, theirs *world
	progress     func()
}

func (d *duel) run(ctx context.Context, res *Result) error {
	for _, s := range sizes {
		size, rget, err := d.size(ctx, s.bytes, s.times)
		if err != nil {
			return err
		}
		if size.ConcurrentRatio > 0 && (res.ConcurrentRatio == 0 || size.ConcurrentRatio < res.ConcurrentRatio) {
			res.ConcurrentRatio = size.ConcurrentRatio
		}
		res.Sizes = append(res.Sizes, size)
		if rget.ReadGBps > 0 {
			res.Sizes = append(res.Sizes, rget)
		}
	}
	micro, err := d.ours.ask(ctx, fmt.Sprintf("idle %d", idleTime), 1)
	if err != nil {
		return err
	}
	res.IdleCore = kit.Round(micro[0] / 1e6)
	return nil
}

// way is one measurement: what is asked of a world. whole counts all reads
// together: the times of many callers overlap. Otherwise the median read counts.
type way struct {
	*world
	line  string
	whole bool
}

// size measures one size in all ways, each once in each round. The second result
// is that of one-sided reads, without a rate where there are none.
func (d *duel) size(ctx context.Context, bytes, times int) (s, direct Size, err error) {
	slots := memoryBytes / bytes
	line := func(mode string) string { return fmt.Sprintf("read %s %d %d %d", mode, bytes, times, slots) }
	const one, c = 0, 1
	ways := []way{one: {d.ours, line("two") + " 1", false}, c: {d.theirs, line("two"), false}}
	many, rget, own := -1, -1, -1 // those that there are
	if slots >= manyCallers {
		many = len(ways)
		ways = append(ways, way{d.ours, fmt.Sprint(line("two"), " ", manyCallers), true})
	}
	if d.rget {
		rget, own = len(ways), len(ways)+1
		ways = append(ways, way{d.theirs, line("rget"), false}, way{d.ours, line("rget") + " 1", false})
	}
	rates, err := kit.Turns(d.o.Rounds+1, len(ways), func(_, i int) (float64, error) {
		return d.rate(ctx, ways[i], bytes, times)
	}, d.progress)
	if err != nil {
		return s, direct, err
	}
	of := func(i int) []float64 {
		if i < 0 || rates[i][0] == 0 { // the world cannot do it
			return nil
		}
		return rates[i][1:] // the first round warms up
	}
	s = Size{Bytes: bytes, ReadGBps: kit.Median(of(one)), CGBps: kit.Median(of(c)), Mode: d.mode, RgetGBps: kit.Median(of(rget))}
	s.Ratios, s.Ratio = kit.Ratios(of(one), of(c))
	if all := of(many); all != nil {
		s.ConcurrentGBps = kit.Median(all)
		_, s.ConcurrentRatio = kit.Ratios(all, of(c))
		_, s.ConcurrentOfOne = kit.Ratios(all, of(one))
	}
	if mine, theirs := of(own), of(rget); mine != nil && theirs != nil {
		direct = Size{Bytes: bytes, ReadGBps: kit.Median(mine), CGBps: kit.Median(theirs), Mode: "rget"}
		direct.Ratios, direct.Ratio = kit.Ratios(mine, theirs)
	}
	return s, direct, nil
}

// rate measures one way once, in GB/s; 0 when the world cannot do it.
func (d *duel) rate(ctx context.Context, w way, bytes, times int) (float64, error) {
	ns, err := w.ask(ctx, w.line, 3)
	switch {
	case err != nil || ns == nil:
		return 0, err
	case w.whole:
		return float64(bytes) * float64(times) / ns[2], nil
	}
	return float64(bytes) / ns[0], nil
}
