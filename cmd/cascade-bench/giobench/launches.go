package giobench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"slices"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/gpu/gio"
)

// LaunchOptions choose a measurement of launches. The zero value of all but Dir is useful.
type LaunchOptions struct {
	Dir       string // on the disk to measure; what is made in it is removed again
	Size      int64  // bytes of a transfer, whole pages; default 128 KiB
	Transfers int    // of an IOCB; default 64
	Most      int    // IOCBs of a launch, a power of two, at least 2; default 32
	Rounds    int    // default 9
	Engine    string // of gio; default io_uring, or the other where it is missing

	Device   []string              // as in Options
	Log      io.Writer             // of the device; default nowhere
	Progress func(done, total int) // called after each round, by one goroutine; may be nil
}

// Launch is what a launch of so many IOCBs took, with nothing else in flight: the median over the rounds
// of the time from the event to the last completion.
type Launch struct {
	IOCBs int           `json:"iocbs"`
	Time  time.Duration `json:"time_ns"`
	Least time.Duration `json:"least_ns"`
	Most  time.Duration `json:"most_ns"`
}

// Launches is the outcome of RunLaunches, of 1, 2, 4 IOCBs and so on.
type Launches struct {
	Engine   string   `json:"engine"`
	Fallback string   `json:"fallback,omitempty"` // why it is not io_uring, unless the other was asked for
	Trigger  string   `json:"trigger"`            // what stands in for the device
	Rounds   int      `json:"rounds"`
	Errors   int      `json:"errors"` // transfers that failed, and blocks of other bytes
	Read     []Launch `json:"read"`
	Write    []Launch `json:"write"`
}

func (o LaunchOptions) withDefaults() (LaunchOptions, error) {
	o.Size = cmp.Or(o.Size, BlockBytes)
	o.Transfers = cmp.Or(o.Transfers, 64)
	o.Most = cmp.Or(o.Most, 32)
	o.Rounds = cmp.Or(o.Rounds, 9)
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Dir == "" || o.Size < 4096 || o.Size%4096 != 0 || o.Transfers < 1 || o.Transfers > gio.MaxIOCTX || o.Most < 2 || o.Most > gio.MaxDepth || o.Most&(o.Most-1) != 0 || o.Rounds < 1 ||
		o.Size > gio.BufferBytes/int64(o.Transfers)/int64(o.Most) {
		return o, fmt.Errorf("%w: directory %q, launches of up to %d IOCBs of %d transfers of %d bytes, %d rounds: want whole pages, a power of two of IOCBs from 2 to %d, at most %d bytes at once",
			kit.ErrBadOption, o.Dir, o.Most, o.Transfers, o.Size, o.Rounds, gio.MaxDepth, gio.BufferBytes)
	}
	return o, nil
}

// RunLaunches measures launches of reads and of writes. Every byte is compared. Errors: those of Run.
func RunLaunches(ctx context.Context, o LaunchOptions) (_ *Launches, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	// All transfers of an IOCB are under way at once; those of the file's halves are drawn from it.
	total := int64(o.Most) * int64(o.Transfers) * o.Size
	all := Options{Depth: iocbs * o.Transfers, Bytes: total, Engine: o.Engine, Device: o.Device, Log: o.Log}
	if len(all.Device) == 0 {
		if all.Device, err = ownDevice(); err != nil {
			return nil, err
		}
	}
	name, remove, err := newData(o.Dir, 2*total)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	k := &kinds{bytes: total}
	if k.rig, err = openRig(all, name, os.O_RDWR, o.Most, 1<<bits.Len(uint(o.Transfers-1))); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	res := &Launches{Engine: k.server.Engine(), Trigger: cpuTrigger, Rounds: o.Rounds}
	if why := k.server.Fallback(); why != nil {
		res.Fallback = why.Error()
	}
	return res, k.launches(ctx, o, res)
}

func (k *kinds) launches(ctx context.Context, o LaunchOptions, res *Launches) error {
	counts := bits.Len(uint(o.Most)) // 1, 2, 4 to Most
	progress, rounds := kit.Progress(o.Rounds, o.Progress), 0
	times, err := kit.Turns(o.Rounds+1, 2*counts, func(_, way int) (float64, error) {
		took, err := k.launch(ctx, gio.Op(way/counts), 1<<(way%counts), o)
		return float64(took), errors.Join(err, k.device.alive())
	}, func() {
		if rounds++; rounds > 1 { // the first round warms up
			progress()
		}
	})
	if err != nil {
		return err
	}
	res.Errors = k.errors
	for way, all := range times {
		all = all[1:]
		l := Launch{1 << (way % counts), time.Duration(kit.Median(all)), time.Duration(slices.Min(all)), time.Duration(slices.Max(all))}
		if way < counts {
			res.Read = append(res.Read, l)
		} else {
			res.Write = append(res.Write, l)
		}
	}
	return nil
}

// launch starts n IOCBs at once, and returns how long they took.
func (k *kinds) launch(ctx context.Context, op gio.Op, n int, o LaunchOptions) (time.Duration, error) {
	b := k.draw(op, o.Size, int64(n*o.Transfers)*o.Size, 0)
	parts := make([]part, n)
	for i := range parts {
		parts[i] = b.part(i*o.Transfers, (i+1)*o.Transfers)
	}
	ids, began, err := k.start(parts...)
	if err != nil {
		return 0, err
	}
	failed, err := k.poll(ctx, ids...)
	took := time.Since(began)
	k.errors += failed
	if err != nil {
		return 0, err
	}
	return took, errors.Join(k.queue.Release(ids...), k.verify(ctx, b))
}

// poll is wait for whom a wait that ends late would be a wrong time: it looks all the time.
func (r *rig) poll(ctx context.Context, ids ...uint32) (failed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	look, stop := context.WithCancel(ctx)
	stop() // WaitCQE looks once
	for _, id := range ids {
		err := r.queue.WaitCQE(look, id)
		for ; errors.Is(err, gio.ErrTimeout) && ctx.Err() == nil; err = r.queue.WaitCQE(look, id) {
			time.Sleep(20 * time.Microsecond)
		}
		var io *gio.IOError
		if errors.As(err, &io) {
			failed += io.Failed
		} else if err != nil {
			return failed, fmt.Errorf("bench: %w", err)
		}
	}
	return failed, nil
}
