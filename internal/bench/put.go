package bench

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"cascadekv/cascade"
	"cascadekv/tiers"
	"cascadekv/tiers/shm"
)

// PutOptions choose a comparison of Store.Put with SHA-256. The zero value
// measures 64 KiB, 256 KiB and 2 MiB on every CPU.
type PutOptions struct {
	Sizes   []int         // bytes of a block; the last one is the main figure
	Rounds  int           // of each size; default 9
	Workers int           // goroutines of both sides; default GOMAXPROCS
	Budget  time.Duration // about how long a phase takes; default 200 ms
	ShmDir  string        // where the arena goes; default /dev/shm

	Progress func(done, total int) // called after each round, by one goroutine; may be nil
}

// PutResult is the outcome of Put. A ratio is the rate of Store.Put divided by
// that of SHA-256 over the same bytes, the median over the rounds.
type PutResult struct {
	RatioHash      float64 `json:"ratio_hash"`          // at the last size, with room to spare
	RatioHashEvict float64 `json:"ratio_hash_evicting"` // at the last size, each put evicting a block

	Workers int       `json:"workers"`
	Rounds  int       `json:"rounds"`
	Machine Machine   `json:"machine"`
	Sizes   []PutSize `json:"sizes"`
}

// PutSize is one size of block.
type PutSize struct {
	Size     int       `json:"size"`
	Blocks   int       `json:"blocks"` // in each phase, of all workers
	Ratio    float64   `json:"ratio"`  // median of Ratios
	Ratios   []float64 `json:"ratios"` // by round
	Put      Figure    `json:"put"`
	Hash     Figure    `json:"hash"`
	Evicting struct {
		Ratio  float64   `json:"ratio"`
		Ratios []float64 `json:"ratios"`
		Put    Figure    `json:"put"`
	} `json:"evicting"`
}

// putBytes bounds what one phase stores, and so the arena.
const putBytes = 512 << 20

// evictingShare is the part of a phase's blocks that the evicting store can
// hold.
const evictingShare = 4

func (o PutOptions) withDefaults() PutOptions {
	if len(o.Sizes) == 0 {
		o.Sizes = []int{64 << 10, 256 << 10, 2 << 20}
	}
	if o.Rounds == 0 {
		o.Rounds = 9
	}
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Budget == 0 {
		o.Budget = 200 * time.Millisecond
	}
	if o.ShmDir == "" {
		o.ShmDir = shm.DefaultDir
	}
	return o
}

func (o PutOptions) check() error {
	for _, size := range o.Sizes {
		if size < stampBytes || size > putBytes/8 {
			return fmt.Errorf("%w: %w: %d bytes, want %d to %d", ErrBadOption, ErrTooSmall, size, stampBytes, putBytes/8)
		}
	}
	if o.Rounds < 1 || o.Workers < 1 || o.Workers > 1024 || o.Budget < 0 {
		return fmt.Errorf("%w: %d rounds of %v, %d workers", ErrBadOption, o.Rounds, o.Budget, o.Workers)
	}
	return nil
}

// Put measures how fast a store on an shm tier takes new blocks by content
// (the id is computed before the put returns) and how fast SHA-256 alone goes
// over the same buffers, with the same number of goroutines, in turns. The
// arena is reserved and touched beforehand. Two stores are measured: one that
// is empty when a phase begins and has room for all of it, and one that is
// full, so that each put evicts. Nothing else runs in them: no cold tier, and
// no names but those of the blocks.
// Errors: ErrBadOption, and those of the tier.
func Put(ctx context.Context, o PutOptions) (PutResult, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return PutResult{}, err
	}
	res := PutResult{Workers: o.Workers, Rounds: o.Rounds, Machine: readMachine()}
	for i, size := range o.Sizes {
		s, err := putSize(ctx, o, size, i*o.Rounds)
		if err != nil {
			return res, err
		}
		res.Sizes = append(res.Sizes, s)
		res.RatioHash, res.RatioHashEvict = s.Ratio, s.Evicting.Ratio
	}
	return res, nil
}

// putSize measures one size.
func putSize(ctx context.Context, o PutOptions, size, before int) (s PutSize, err error) {
	b := &putBench{o: o, size: size}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(ctx); err != nil {
		return s, err
	}
	var rates [putKinds][]float64
	for r := range o.Rounds {
		for turn := range putKinds {
			kind := (turn + r) % putKinds
			rate, err := b.phase(ctx, kind)
			if err != nil {
				return s, err
			}
			rates[kind] = append(rates[kind], rate)
		}
		if o.Progress != nil {
			o.Progress(before+r+1, len(o.Sizes)*o.Rounds)
		}
	}
	s = PutSize{Size: size, Blocks: b.each * o.Workers, Put: figureOf(rates[putRoomy]), Hash: figureOf(rates[putHash])}
	s.Ratios = ratios(rates[putRoomy], rates[putHash])
	s.Ratio = round(median(s.Ratios))
	s.Evicting.Ratios = ratios(rates[putEvicting], rates[putHash])
	s.Evicting.Ratio = round(median(s.Evicting.Ratios))
	s.Evicting.Put = figureOf(rates[putEvicting])
	return s, nil
}

// What a phase of the put benchmark does.
const (
	putHash = iota
	putRoomy
	putEvicting
	putKinds
)

// putBench is one size under measurement.
type putBench struct {
	o     PutOptions
	size  int
	slots int // buffers of each worker
	each  int // blocks of each worker in a phase

	values *values
	stores [putKinds]*cascade.Store // none for putHash
	arenas []string
}

// sourceBytes is what each worker's buffers have together: more than its share
// of a cache.
const sourceBytes = 32 << 20

func (b *putBench) open(ctx context.Context) error {
	b.slots = max(2, sourceBytes/b.size)
	most := max(1, putBytes/b.size/b.o.Workers)
	b.each = min(most, 2*b.slots)
	var err error
	if b.values, err = newValues(b.slots*b.o.Workers, b.size); err != nil {
		return err
	}
	room := int64(most*b.o.Workers) * int64(b.size)
	if b.stores[putRoomy], err = b.openStore(ctx, room); err != nil {
		return err
	}
	if b.stores[putEvicting], err = b.openStore(ctx, max(room/evictingShare, 4*int64(b.o.Workers*b.size))); err != nil {
		return err
	}
	// The first run of each kind warms it up and tells how many blocks fill
	// the budget.
	rate, err := b.phase(ctx, putHash)
	if err != nil {
		return err
	}
	b.each = min(most, max(1, int(rate*mega*b.o.Budget.Seconds())/b.size/b.o.Workers))
	for filled := int64(0); filled < room; filled += int64(b.each * b.o.Workers * b.size) {
		if _, err := b.phase(ctx, putEvicting); err != nil {
			return err
		}
	}
	_, err = b.phase(ctx, putRoomy)
	return err
}

// openStore makes a store with room for so many bytes of blocks and waits
// until its memory is ready.
func (b *putBench) openStore(ctx context.Context, room int64) (*cascade.Store, error) {
	file, err := os.CreateTemp(b.o.ShmDir, "cascade-bench-*.arena")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	arena := filepath.Clean(file.Name())
	b.arenas = append(b.arenas, arena)
	// The tier makes the file itself; only the name had to be found.
	if err := errors.Join(file.Close(), os.Remove(arena)); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	memory, err := shm.Open(arena, room+room/4+64<<20)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if err := memory.WaitReady(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("bench: %w", err), memory.Close())
	}
	store, err := cascade.Open(ctx, cascade.Options{Memory: []tiers.Memory{memory}, Capacity: room, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return store, nil
}

// phase runs one kind once and returns its rate in MB/s. The roomy store is
// emptied first, outside the clock.
func (b *putBench) phase(ctx context.Context, kind int) (float64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if kind == putRoomy {
		b.stores[kind].Clear(ctx, "", true)
	}
	first := b.values.stamps(b.each * b.o.Workers)
	start := make(chan struct{})
	failed := make([]error, b.o.Workers)
	var all sync.WaitGroup
	for w := range b.o.Workers {
		all.Go(func() {
			<-start
			failed[w] = b.work(ctx, b.stores[kind], w, first+uint64(w*b.each)+1)
		})
	}
	began := time.Now()
	close(start)
	all.Wait()
	took := time.Since(began)
	return float64(b.each*b.o.Workers) * float64(b.size) / mega / took.Seconds(), errors.Join(failed...)
}

// work is one goroutine's share of a phase; without a store it only hashes.
func (b *putBench) work(ctx context.Context, s *cascade.Store, worker int, seq uint64) error {
	e := cascade.Entry{Namespace: "bench"}
	for i := range b.each {
		p := b.values.at(worker*b.slots + i%b.slots)
		stamp(p, seq+uint64(i))
		if s == nil {
			sha256.Sum256(p)
			continue
		}
		e.Key = strconv.FormatUint(seq+uint64(i), 10)
		res, err := s.Put(ctx, e, p, nil)
		if err == nil && res.Duplicate {
			err = fmt.Errorf("%w: new bytes were taken for known ones", ErrWrong)
		}
		if err != nil {
			return fmt.Errorf("bench: put: %w", err)
		}
	}
	return nil
}

// close ends the stores without draining: there is nothing to drain to.
func (b *putBench) close() error {
	var err error
	for _, s := range b.stores {
		if s != nil {
			err = errors.Join(err, s.Close(context.Background()))
		}
	}
	for _, arena := range b.arenas {
		if e := os.Remove(arena); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	if b.values != nil {
		err = errors.Join(err, b.values.close())
	}
	return err
}
