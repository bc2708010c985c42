package putbench

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"cascadekv/cascade"
	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/tiers"
	"cascadekv/tiers/shm"
)

// Options choose a comparison of Store.Put with SHA-256. The zero value
// measures 64 KiB, 256 KiB and 2 MiB on every CPU.
type Options struct {
	Sizes   []int         // bytes of a block; the last one is the main figure
	Rounds  int           // of each size; default 9
	Workers int           // goroutines of both sides; default GOMAXPROCS
	Budget  time.Duration // about how long a phase takes; default 200 ms
	ShmDir  string        // where the arena goes; default /dev/shm

	Progress func(done, total int) // called after each round, by one goroutine; may be nil
}

// Result is the outcome of Put. A ratio is the rate of Store.Put divided by
// that of SHA-256 over the same bytes, the median over the rounds.
type Result struct {
	RatioHash      float64 `json:"ratio_hash"`          // at the last size, with room to spare
	RatioHashEvict float64 `json:"ratio_hash_evicting"` // at the last size, each put evicting a block

	Workers int         `json:"workers"`
	Rounds  int         `json:"rounds"`
	Machine kit.Machine `json:"machine"`
	Sizes   []Size      `json:"sizes"`
}

// Size is one size of block.
type Size struct {
	Size     int        `json:"size"`
	Blocks   int        `json:"blocks"` // in each phase, of all workers
	Ratio    float64    `json:"ratio"`  // median of Ratios
	Ratios   []float64  `json:"ratios"` // by round
	Put      kit.Figure `json:"put"`
	Hash     kit.Figure `json:"hash"`
	Evicting struct {
		Ratio  float64    `json:"ratio"`
		Ratios []float64  `json:"ratios"`
		Put    kit.Figure `json:"put"`
	} `json:"evicting"`
}

// putBytes bounds what one phase stores, and so the arena.
const putBytes = 512 << 20

// evictingShare is the part of a phase's blocks that the evicting store can
// hold.
const evictingShare = 4

func (o Options) withDefaults() Options {
	if len(o.Sizes) == 0 {
		o.Sizes = []int{64 << 10, 256 << 10, 2 << 20}
	}
	o.Rounds = cmp.Or(o.Rounds, 9)
	o.Workers = cmp.Or(o.Workers, runtime.GOMAXPROCS(0))
	o.Budget = cmp.Or(o.Budget, 200*time.Millisecond)
	o.ShmDir = cmp.Or(o.ShmDir, shm.DefaultDir)
	return o
}

func (o Options) check() error {
	for _, size := range o.Sizes {
		if size < kit.StampBytes || size > putBytes/8 {
			return fmt.Errorf("%w: %w: %d bytes, want %d to %d", kit.ErrBadOption, kit.ErrTooSmall, size, kit.StampBytes, putBytes/8)
		}
	}
	if o.Rounds < 1 || o.Workers < 1 || o.Workers > 1024 || o.Budget < 0 {
		return fmt.Errorf("%w: %d rounds of %v, %d workers", kit.ErrBadOption, o.Rounds, o.Budget, o.Workers)
	}
	return nil
}

// Run measures how fast a store on an shm tier takes new blocks by content
// (the id is computed before the put returns) and how fast SHA-256 alone goes
// over the same buffers, with the same number of goroutines, in turns. The
// arena is reserved and touched beforehand. Two stores are measured: one that
// is empty when a phase begins and has room for all of it, and one that is
// full, so that each put evicts. Errors: kit.ErrBadOption, and those of the tier.
func Run(ctx context.Context, o Options) (Result, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return Result{}, err
	}
	res := Result{Workers: o.Workers, Rounds: o.Rounds, Machine: kit.ReadMachine()}
	progress := kit.Progress(len(o.Sizes)*o.Rounds, o.Progress)
	for _, size := range o.Sizes {
		s, err := measure(ctx, o, size, progress)
		if err != nil {
			return res, err
		}
		res.Sizes = append(res.Sizes, s)
		res.RatioHash, res.RatioHashEvict = s.Ratio, s.Evicting.Ratio
	}
	return res, nil
}

// measure measures one size.
func measure(ctx context.Context, o Options, size int, progress func()) (s Size, err error) {
	b := &bench{o: o, size: size}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(ctx); err != nil {
		return s, err
	}
	rates, err := kit.Turns(o.Rounds, ways, func(_, way int) (float64, error) { return b.phase(ctx, way) }, progress)
	if err != nil {
		return s, err
	}
	s = Size{Size: size, Blocks: b.each * o.Workers, Put: kit.FigureOf(rates[roomy]), Hash: kit.FigureOf(rates[hash])}
	s.Ratios, s.Ratio = kit.Ratios(rates[roomy], rates[hash])
	s.Evicting.Put = kit.FigureOf(rates[evicting])
	s.Evicting.Ratios, s.Evicting.Ratio = kit.Ratios(rates[evicting], rates[hash])
	return s, nil
}

// What a phase does.
const (
	hash = iota
	roomy
	evicting
	ways
)

// bench is one size under measurement.
type bench struct {
	o     Options
	size  int
	slots int // buffers of each worker
	each  int // blocks of each worker in a phase

	values *kit.Values
	stores [ways]*cascade.Store // none for hash
	dir    string               // of the arenas
}

// sourceBytes is what each worker's buffers have together: more than its share
// of a cache.
const sourceBytes = 32 << 20

func (b *bench) open(ctx context.Context) error {
	b.slots = max(2, sourceBytes/b.size)
	most := max(1, putBytes/b.size/b.o.Workers)
	b.each = min(most, 2*b.slots)
	var err error
	if b.values, err = kit.NewValues(b.slots*b.o.Workers, b.size); err != nil {
		return err
	}
	room := int64(most*b.o.Workers) * int64(b.size)
	if b.dir, err = os.MkdirTemp(b.o.ShmDir, "cascade-bench-"); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if err := b.openStore(ctx, roomy, room); err != nil {
		return err
	}
	if err := b.openStore(ctx, evicting, max(room/evictingShare, 4*int64(b.o.Workers*b.size))); err != nil {
		return err
	}
	// The first phase of each way warms it up; that of SHA-256 determines how many
	// blocks fill the budget.
	rate, err := b.phase(ctx, hash)
	if err != nil {
		return err
	}
	b.each = min(most, max(1, int(rate*kit.Mega*b.o.Budget.Seconds())/b.size/b.o.Workers))
	for filled := int64(0); filled < room; filled += int64(b.each * b.o.Workers * b.size) {
		if _, err := b.phase(ctx, evicting); err != nil {
			return err
		}
	}
	_, err = b.phase(ctx, roomy)
	return err
}

// openStore makes a store with room for so many bytes of blocks and waits
// until its memory is ready.
func (b *bench) openStore(ctx context.Context, way int, room int64) (err error) {
	memory, err := shm.Open(filepath.Join(b.dir, strconv.Itoa(way)+".arena"), room+room/4+64<<20)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if err := memory.WaitReady(ctx); err != nil {
		return errors.Join(fmt.Errorf("bench: %w", err), memory.Close())
	}
	b.stores[way], err = cascade.Open(ctx, cascade.Options{Memory: []tiers.Memory{memory}, Capacity: room, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

// phase measures one way once and returns its rate in MB/s. The roomy store is
// emptied first, outside the clock.
func (b *bench) phase(ctx context.Context, way int) (float64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if way == roomy {
		b.stores[way].Clear(ctx, "", true)
	}
	first := b.values.Stamps(b.each * b.o.Workers)
	took, err := kit.Parallel(b.o.Workers, b.o.Workers, func(_, w int) error {
		return b.work(ctx, b.stores[way], w, first+uint64(w*b.each)+1)
	})
	return float64(b.each*b.o.Workers) * float64(b.size) / kit.Mega / took.Seconds(), err
}

// work is one goroutine's share of a phase; without a store it only hashes.
func (b *bench) work(ctx context.Context, s *cascade.Store, worker int, seq uint64) error {
	e := cascade.Entry{Namespace: "bench"}
	for i := range b.each {
		p := b.values.At(worker*b.slots + i%b.slots)
		kit.Stamp(p, seq+uint64(i))
		if s == nil {
			sha256.Sum256(p)
			continue
		}
		e.Key = strconv.FormatUint(seq+uint64(i), 10)
		res, err := s.Put(ctx, e, p, nil)
		if err == nil && res.Duplicate {
			err = fmt.Errorf("%w: new bytes were taken for known ones", kit.ErrWrong)
		}
		if err != nil {
			return fmt.Errorf("bench: put: %w", err)
		}
	}
	return nil
}

// close ends the stores without draining: there is nothing to drain to.
func (b *bench) close() error {
	var err error
	for _, s := range b.stores {
		if s != nil {
			err = errors.Join(err, s.Close(context.Background()))
		}
	}
	if b.dir != "" {
		err = errors.Join(err, os.RemoveAll(b.dir))
	}
	if b.values != nil {
		err = errors.Join(err, b.values.Close())
	}
	return err
}
