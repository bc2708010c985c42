package giobench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/gpu/gio"
)

// BlockBytes is the size of a read.
const BlockBytes = 128 << 10

// iocbs share the depth and the bytes of a turn.
const iocbs = 2

// Options choose a measurement. The zero value of all but Dir is useful.
type Options struct {
	Dir    string // on the disk to read; what is made in it is removed again
	Rounds int    // default 9
	Depth  int    // reads under way on every side, even; default 1024
	Bytes  int64  // of a turn, and half of the file; at most 512 MiB, which is the default
	Engine string // of gio; default io_uring, or the other where it is missing

	Device   []string              // the program that calls Device, and its arguments; default this one with DeviceVerb
	Log      io.Writer             // of the device; default nowhere
	Progress func(done, total int) // called after each round, by one goroutine; may be nil
}

// Result is the outcome of Run. Ratios are medians over the rounds but for
// UserCPURatio, which is of all rounds together.
type Result struct {
	RatioFio      *float64    `json:"ratio_fio"`          // gio over fio; null without fio
	UserCPURatio  float64     `json:"user_cpu_ratio"`     // user-space CPU per byte, gio over the pool
	WithDeviceCPU float64     `json:"with_device_cpu"`    // the same with the CPU that plays the device, which spins
	Errors        int         `json:"errors"`             // I/Os that failed, and blocks of other bytes, of gio and the pool
	RatioPool     float64     `json:"ratio_pool"`         // gio over the pool, in bytes a second
	Why           string      `json:"why,omitempty"`      // why there is no fio
	Engine        string      `json:"engine"`             //
	Fallback      string      `json:"fallback,omitempty"` // why it is not io_uring, unless the other was asked for
	Trigger       string      `json:"trigger"`            // what stands in for the device
	Depth         int         `json:"depth"`              //
	BlockBytes    int         `json:"block_bytes"`        //
	TurnBytes     int64       `json:"turn_bytes"`         //
	Rounds        int         `json:"rounds"`             //
	Gio           Side        `json:"gio"`                //
	Fio           Side        `json:"fio"`                //
	Pool          Side        `json:"pread_pool"`         //
	Ratios        []float64   `json:"ratios_fio"`         // by round
	Mixed         Mixed       `json:"mixed"`              //
	Commands      Commands    `json:"commands"`           //
	Machine       kit.Machine `json:"machine"`            //
}

// Side is what one way of reading did. CPU is in seconds per GB, of this process
// and the kernel's threads that work for it: absent for fio.
type Side struct {
	kit.Figure
	UserCPU   float64 `json:"user_cpu_s_per_gb,omitempty"`
	SystemCPU float64 `json:"system_cpu_s_per_gb,omitempty"`
	DeviceCPU float64 `json:"device_cpu_s_per_gb,omitempty"`
}

func (o Options) withDefaults() (Options, error) {
	o.Rounds = cmp.Or(o.Rounds, 9)
	o.Depth = cmp.Or(o.Depth, 1024)
	o.Bytes = cmp.Or(o.Bytes, 512<<20)
	if o.Log == nil {
		o.Log = io.Discard
	}
	if len(o.Device) == 0 {
		var err error
		if o.Device, err = ownDevice(); err != nil {
			return o, err
		}
	}
	blocks := o.Bytes / BlockBytes
	if o.Dir == "" || o.Rounds < 1 || o.Depth < iocbs || o.Depth > iocbs*gio.MaxIOCTX || o.Depth%iocbs != 0 || o.Bytes != blocks*BlockBytes || blocks&(blocks-1) != 0 ||
		blocks < iocbs || blocks > iocbs*gio.MaxIOCTX {
		return o, fmt.Errorf("%w: directory %q, %d rounds, depth %d, which must be even and at most 4096, %d bytes in a turn, which must be a power of two from 256 KiB to 512 MiB",
			kit.ErrBadOption, o.Dir, o.Rounds, o.Depth, o.Bytes)
	}
	return o, nil
}

// bench is one measurement, used by one goroutine.
type bench struct {
	*rig
	o      Options
	blocks []int64 // of the file, in the order of the next turn
	errors int
	cpu    [2]usage // gio's and the pool's
	spun   time.Duration
}

// usage is CPU time.
type usage struct{ user, system time.Duration }

// Run reads by gio, fio and a pool of threads, alternating. Errors:
// kit.ErrBadOption, kit.ErrStart, those of the file system and of gio.
func Run(ctx context.Context, o Options) (res *Result, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	name, remove, err := newData(o.Dir, 2*o.Bytes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	res = &Result{Machine: kit.ReadMachine(), Trigger: cpuTrigger, Depth: o.Depth,
		BlockBytes: BlockBytes, TurnBytes: o.Bytes, Rounds: o.Rounds}
	kinds := min(o.Rounds, kindRounds)
	progress := kit.Progress(o.Rounds+kinds, o.Progress)
	if err := runReads(ctx, o, name, res, progress); err != nil {
		return res, err
	}
	return res, runKinds(ctx, o, name, kinds, res, progress)
}

// runReads compares gio with the others.
func runReads(ctx context.Context, o Options, name string, res *Result, progress func()) (err error) {
	b := &bench{o: o}
	if b.rig, err = openRig(o, name, os.O_RDONLY, iocbs, int(o.Bytes/BlockBytes/iocbs)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	for i := range 2 * o.Bytes / BlockBytes {
		b.blocks = append(b.blocks, i)
	}
	res.Engine = b.server.Engine()
	if why := b.server.Fallback(); why != nil {
		res.Fallback = why.Error()
	}
	if _, err := b.fio(ctx, BlockBytes); err != nil {
		res.Why = err.Error()
	}
	return b.measure(ctx, res, progress)
}

func (b *bench) measure(ctx context.Context, res *Result, progress func()) error {
	ways := []func(context.Context) (float64, error){b.gio, b.pool, func(ctx context.Context) (float64, error) { return b.fio(ctx, b.o.Bytes) }}
	if res.Why != "" {
		ways = ways[:2]
	}
	rounds := 0
	rates, err := kit.Turns(b.o.Rounds+1, len(ways), func(_, way int) (float64, error) { return ways[way](ctx) }, func() {
		if rounds++; rounds > 1 {
			progress()
			return
		}
		b.cpu, b.spun = [2]usage{}, 0 // the first round warms up
	})
	if err != nil {
		return err
	}
	for i := range rates {
		rates[i] = rates[i][1:]
	}
	res.Errors = b.errors
	res.Gio, res.Pool = b.side(rates[0], 0), b.side(rates[1], 1)
	_, res.RatioPool = kit.Ratios(rates[0], rates[1])
	res.UserCPURatio = kit.Round(float64(b.cpu[0].user) / float64(b.cpu[1].user))
	res.WithDeviceCPU = kit.Round(float64(b.cpu[0].user+b.spun) / float64(b.cpu[1].user))
	res.Gio.DeviceCPU = kit.Round(b.spun.Seconds() / b.gigabytes())
	if len(rates) == 3 {
		res.Fio = Side{Figure: kit.FigureOf(rates[2])}
		var median float64
		res.Ratios, median = kit.Ratios(rates[0], rates[2])
		res.RatioFio = &median
	}
	return nil
}

// gigabytes is what a way has read in all rounds.
func (b *bench) gigabytes() float64 { return float64(b.o.Bytes) * float64(b.o.Rounds) / kit.Giga }

func (b *bench) side(rates []float64, way int) Side { return sideOf(rates, b.cpu[way], b.gigabytes()) }

func sideOf(rates []float64, u usage, gigabytes float64) Side {
	return Side{Figure: kit.FigureOf(rates), UserCPU: kit.Round(u.user.Seconds() / gigabytes), SystemCPU: kit.Round(u.system.Seconds() / gigabytes)}
}

// gio has the device read a turn. The time runs from the event to the last
// completion; the CPU time has the preparation too.
func (b *bench) gio(ctx context.Context) (float64, error) {
	b.shuffle()
	if err := b.device.resume(); err != nil {
		return 0, err
	}
	spun, err := b.device.cpu()
	if err != nil {
		return 0, err
	}
	var took time.Duration
	err = b.cpu[0].spend(func() (err error) {
		took, err = b.readTurn(ctx)
		return err
	})
	if err != nil {
		return 0, errors.Join(err, b.device.alive())
	}
	until, err := b.device.cpu()
	b.spun += until - spun
	if err = errors.Join(err, b.device.pause()); err != nil {
		return 0, err
	}
	b.verify()
	return float64(b.o.Bytes) / kit.Mega / took.Seconds(), nil
}

func (b *bench) readTurn(ctx context.Context) (time.Duration, error) {
	n := len(b.blocks) / 2 / iocbs
	half := func(k int) part {
		return part{gio.Read, n, func(i int) gio.IOCTX { return transfer(k*n+i, b.blocks[k*n+i], BlockBytes) }}
	}
	ids, began, err := b.start(half(0), half(1))
	if err != nil {
		return 0, err
	}
	failed, err := b.wait(ctx, ids...)
	took := time.Since(began)
	b.errors += failed
	if err != nil {
		return 0, err
	}
	return took, b.queue.Release(ids...)
}

// pool has threads read a turn.
func (b *bench) pool(context.Context) (float64, error) {
	b.shuffle()
	n := int(b.o.Bytes / BlockBytes)
	var took time.Duration
	err := b.cpu[1].spend(func() (err error) {
		took, err = kit.Parallel(b.o.Depth, n, func(_, i int) error {
			got, err := unix.Pread(int(b.file.Fd()), b.data[i*BlockBytes:][:BlockBytes], b.blocks[i]*BlockBytes)
			if err == nil && got != BlockBytes {
				err = io.ErrUnexpectedEOF
			}
			return err
		})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("bench: pread: %w", err)
	}
	b.verify()
	return float64(b.o.Bytes) / kit.Mega / took.Seconds(), nil
}

func (b *bench) fio(ctx context.Context, bytes int64) (float64, error) {
	rate, err := kit.FioRead(ctx, bytes, "--filename="+b.file.Name(), "--rw=randread", "--size="+strconv.FormatInt(2*b.o.Bytes, 10),
		"--io_size="+strconv.FormatInt(bytes, 10), "--bs="+strconv.Itoa(BlockBytes), "--iodepth="+strconv.Itoa(b.o.Depth), "--fixedbufs", "--registerfiles")
	return rate / kit.Mega, err
}

// shuffle chooses the blocks of a turn, and takes the last one's bytes away.
func (b *bench) shuffle() {
	rand.Shuffle(len(b.blocks), func(i, j int) { b.blocks[i], b.blocks[j] = b.blocks[j], b.blocks[i] })
	clear(b.data)
}

// verify compares every byte of a turn.
func (b *bench) verify() {
	for i := range int(b.o.Bytes / BlockBytes) {
		if !isBlock(b.data[i*BlockBytes:][:BlockBytes], uint64(b.blocks[i])*BlockBytes) {
			b.errors++
		}
	}
}

// spend adds the CPU time that this process takes while f runs.
func (u *usage) spend(f func() error) error {
	before, err := readUsage()
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	after, err := readUsage()
	u.user += after.user - before.user
	u.system += after.system - before.system
	return err
}

func readUsage() (usage, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return usage{}, fmt.Errorf("bench: CPU time: %w", err)
	}
	return usage{time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())}, nil
}
