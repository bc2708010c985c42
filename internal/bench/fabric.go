package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// FabricOptions say what Fabric measures.
type FabricOptions struct {
	MPI      string                // "openmpi", "mpich", or "none" for TCP on loopback
	Rounds   int                   // of each size; at least 1
	Progress func(done, total int) // may be nil
	Log      io.Writer             // what builds and launchers say; may be nil
}

// FabricSize is the outcome for one size of read. Rates are of 10⁹ bytes a
// second, from the median time of a read; ratios are medians of the rounds'.
type FabricSize struct {
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

// FabricResult is the outcome of Fabric.
type FabricResult struct {
	Machine         Machine      `json:"machine"`
	MPI             string       `json:"mpi"`
	Callers         int          `json:"callers"`
	Sizes           []FabricSize `json:"sizes"`
	ConcurrentRatio float64      `json:"concurrent_ratio"` // the least of the sizes'
	IdleCore        float64      `json:"idle_core"`        // cores that the busier rank uses when nothing happens
}

const (
	fabricMemory  = 128 << 20 // of each rank; sizes use it in turn, as blocks lie in an arena
	fabricCallers = 32
	fabricIdle    = 2 * time.Second
)

// fabricSizes are the reads that are measured. times fill about a tenth of a
// second.
var fabricSizes = []struct{ bytes, times int }{{256 << 10, 1600}, {4 << 20, 128}, {64 << 20, 8}}

// Fabric measures reads from one rank to another, and the same transfers in C.
// Errors: ErrBadOption, ErrNoSource, ErrBuild, ErrWorld, ctx's.
func Fabric(ctx context.Context, o FabricOptions) (*FabricResult, error) {
	if o.Rounds < 1 {
		return nil, fmt.Errorf("%w: %d rounds", ErrBadOption, o.Rounds)
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	kit, err := buildFabricKit(ctx, o)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(kit.memory)
	res := &FabricResult{Machine: readMachine(), MPI: o.MPI, Callers: fabricCallers}
	ours, err := kit.start(ctx, kit.ours)
	if err != nil {
		return nil, err
	}
	theirs, err := kit.start(ctx, kit.theirs)
	if err != nil {
		return nil, errors.Join(err, ours.stop())
	}
	d := &fabricDuel{o: o, kit: kit, ours: ours, theirs: theirs}
	err = d.run(ctx, res)
	return res, errors.Join(err, ours.stop(), theirs.stop())
}

// fabricDuel is both worlds, which take turns.
type fabricDuel struct {
	o            FabricOptions
	kit          *fabricKit
	ours, theirs *fabricWorld
	done         int
}

func (d *fabricDuel) run(ctx context.Context, res *FabricResult) error {
	for _, s := range fabricSizes {
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
	micro, err := d.ours.ask(ctx, fmt.Sprintf("idle %d", fabricIdle), 1)
	if err != nil {
		return err
	}
	res.IdleCore = round(micro[0] / 1e6)
	return nil
}

// size measures one size in all ways, each once in each round. The second result
// is that of one-sided reads, without a rate where there are none.
func (d *fabricDuel) size(ctx context.Context, bytes, times int) (s, direct FabricSize, err error) {
	slots := fabricMemory / bytes
	var one, c, rget, own, many []float64 // GB/s, a round each
	ways := []func() error{
		d.way(ctx, &one, d.ours, bytes, fmt.Sprintf("read two %d %d %d 1", bytes, times, slots), 0),
		d.way(ctx, &c, d.theirs, bytes, fmt.Sprintf("read two %d %d %d", bytes, times, slots), 0),
	}
	if slots >= fabricCallers {
		// The sum is what many callers are about: their own times overlap.
		ways = append(ways, d.way(ctx, &many, d.ours, bytes, fmt.Sprintf("read two %d %d %d %d", bytes, times, slots, fabricCallers), times))
	}
	if d.kit.rget {
		ways = append(ways, d.way(ctx, &rget, d.theirs, bytes, fmt.Sprintf("read rget %d %d %d", bytes, times, slots), 0),
			d.way(ctx, &own, d.ours, bytes, fmt.Sprintf("read rget %d %d %d 1", bytes, times, slots), 0))
	}
	for r := range d.o.Rounds + 1 {
		for i := range ways {
			if err := ways[(i+r)%len(ways)](); err != nil {
				return s, direct, err
			}
		}
		if r == 0 { // it warmed up
			one, c, rget, own, many = nil, nil, nil, nil, nil
		}
		d.done++
		if d.o.Progress != nil {
			d.o.Progress(d.done, len(fabricSizes)*(d.o.Rounds+1))
		}
	}
	s = FabricSize{Bytes: bytes, ReadGBps: round(median(one)), CGBps: round(median(c)), Mode: d.kit.mode, RgetGBps: round(median(rget))}
	s.Ratios = ratios(one, c)
	s.Ratio = round(median(s.Ratios))
	if len(many) > 0 {
		s.ConcurrentGBps = round(median(many))
		s.ConcurrentRatio = round(median(ratios(many, c)))
		s.ConcurrentOfOne = round(median(ratios(many, one)))
	}
	if len(own) > 0 && len(rget) > 0 {
		direct = FabricSize{Bytes: bytes, ReadGBps: round(median(own)), CGBps: round(median(rget)), Mode: "rget", Ratios: ratios(own, rget)}
		direct.Ratio = round(median(direct.Ratios))
	}
	return s, direct, nil
}

// way returns one measurement: it asks w and adds GB/s to rates, from the
// median read, or with times > 0, from the time that all took together.
func (d *fabricDuel) way(ctx context.Context, rates *[]float64, w *fabricWorld, bytes int, line string, times int) func() error {
	return func() error {
		n, err := w.ask(ctx, line, 3)
		if err != nil || n == nil {
			return err
		}
		rate := float64(bytes) / n[0]
		if times > 0 {
			rate = float64(bytes) * float64(times) / n[2]
		}
		*rates = append(*rates, rate)
		return nil
	}
}
