package coldbench

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"time"

	"cascadekv/cascade"
	"cascadekv/cascade/identity"
	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/block"
	"cascadekv/internal/config"
	"cascadekv/lustre"
	"cascadekv/tiers"
	"cascadekv/tiers/host"
)

// Options choose what is stored. The zero value of every field is useful.
type Options struct {
	Blocks  int    // default 5,000,000
	Names   int    // of each block; default 3
	Size    int    // bytes of a block; default 256
	Samples int    // probes, gets and reads that are timed; default 1000
	Dir     string // on a local disk; default that for temporary files
	Profile string // folder for CPU profiles of each phase; empty: none is taken

	Progress func(done, total int) // may be nil
}

// Result is the outcome of Run. Times are medians, in microseconds.
type Result struct {
	Blocks  int         `json:"blocks"`
	Names   int         `json:"names"` // of each block
	Size    int         `json:"size"`
	Machine kit.Machine `json:"machine"`

	HeapPerBlock float64 `json:"heap_bytes_per_block"` // what the heap grew by, after a collection, without the index's cache
	InMemory     int     `json:"names_in_memory"`      // of those stored
	Restarted    float64 `json:"heap_bytes_per_block_after_start"`
	StoreSeconds float64 `json:"store_seconds"` // from the first put until the last is durable
	Refused      int     `json:"puts_refused"`  // for want of room, and tried again
	StartSeconds float64 `json:"start_seconds"`

	Probe    float64 `json:"probe_us"` // of a cold chain of 512
	Get      float64 `json:"get_us"`
	Read     float64 `json:"read_us"` // of a block at a known place
	GetExtra float64 `json:"get_us_above_read"`
}

// chain is how many blocks follow on each other.
const chain = 512

// memory is that of the rank: blocks are cold soon.
const memory = 8 << 20

// Run stores chains of blocks in a rank with little memory, each block under several
// names, waits until they are cold and durable, and measures. It compares the bytes of
// what it gets. Errors: kit.ErrBadOption, kit.ErrWrong, those of the store.
func Run(ctx context.Context, o Options) (res Result, err error) {
	o.Blocks, o.Names = cmp.Or(o.Blocks, 5_000_000), cmp.Or(o.Names, 3)
	o.Size, o.Samples = cmp.Or(o.Size, 256), cmp.Or(o.Samples, 1000)
	if o.Blocks < 2*chain || o.Names < 1 || o.Size < 16 || o.Size > memory/64 || o.Samples < 1 {
		return res, fmt.Errorf("%w: %d blocks of %d bytes with %d names, %d samples", kit.ErrBadOption, o.Blocks, o.Size, o.Names, o.Samples)
	}
	dir, err := os.MkdirTemp(o.Dir, "cascade-cold-")
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{o: o, dir: dir}
	res = Result{Blocks: o.Blocks, Names: o.Names, Size: o.Size, Machine: kit.ReadMachine()}
	if err := b.open(ctx); err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	empty := b.heap()
	began := time.Now()
	if err := b.profiled("store", func() error { return b.fill(ctx) }); err != nil {
		return res, err
	}
	res.StoreSeconds, res.Refused = kit.Round(time.Since(began).Seconds()), b.refused
	if err := b.settle(ctx); err != nil {
		return res, err
	}
	res.HeapPerBlock = kit.Round(float64(b.heap()-empty) / float64(o.Blocks))
	res.InMemory = b.store.Stats().Names
	if err := b.close(); err != nil {
		return res, err
	}
	began = time.Now()
	if err := b.profiled("start", func() error { return b.open(ctx) }); err != nil {
		return res, err
	}
	res.StartSeconds = kit.Round(time.Since(began).Seconds())
	res.Restarted = kit.Round(float64(b.heap()-empty) / float64(o.Blocks))
	return res, b.ask(ctx, &res)
}

// profiled runs fn, and writes a CPU profile of it if that is wanted.
func (b *bench) profiled(phase string, fn func() error) error {
	if b.o.Profile == "" {
		return fn()
	}
	f, err := os.Create(filepath.Join(b.o.Profile, phase+".pprof"))
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return errors.Join(err, f.Close())
	}
	err = fn()
	pprof.StopCPUProfile()
	return errors.Join(err, f.Close())
}

type bench struct {
	o     Options
	dir   string
	store *cascade.Store
	cold  *lustre.Tier

	refused int // puts
}

func (b *bench) open(ctx context.Context) error {
	m, err := host.Open(memory)
	if err != nil {
		return err
	}
	b.cold, err = lustre.Open(lustre.Options{Dir: filepath.Join(b.dir, "segments"), OwnOnly: true, Catalogued: true, SegmentBytes: 256 << 20, SegmentBlocks: config.Default().Lustre.SegmentBlocks})
	if err != nil {
		return errors.Join(err, m.Close())
	}
	if err := b.cold.OpenCatalogue(lustre.IndexOptions{Dir: filepath.Join(b.dir, "index"), Campaign: "bench", CacheBytes: cacheBytes}); err != nil {
		return errors.Join(err, m.Close(), b.cold.Close())
	}
	b.store, err = cascade.Open(ctx, cascade.Options{
		Memory: []tiers.Memory{m}, Cold: b.cold, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	return err
}

// cacheBytes is what the index keeps of itself in memory, whatever it holds, as in a
// daemon: the heap has it where the process is not built with cgo, and it is not counted.
// With little more than its write buffers take, each search reads filters from files.
const cacheBytes = 128 << 20

// heap is what is live, without the index's cache.
func (b *bench) heap() int64 {
	runtime.GC()
	runtime.GC() // what a finalizer held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) - int64(b.cold.Catalogue().State().MemoryBytes)
}

func (b *bench) close() error {
	if b.store == nil {
		return nil
	}
	s := b.store
	b.store = nil
	return s.Close(context.Background())
}

// content makes the bytes of a block.
func (b *bench) content(i int) []byte {
	p := make([]byte, b.o.Size)
	rng := rand.NewPCG(uint64(i), 28)
	for at := 0; at+8 <= len(p); at += 8 {
		binary.LittleEndian.PutUint64(p[at:], rng.Uint64())
	}
	return p
}

// key is a name of a block: a hash, as engines have.
func key(name, i int) string { return identity.HeadKey([]uint32{uint32(name), uint32(i)}).String() }

const namespace = "bench"

func (b *bench) fill(ctx context.Context) error {
	progress := kit.Progress(b.o.Blocks/chain, b.o.Progress)
	for i := range b.o.Blocks {
		p := b.content(i)
		for name := range b.o.Names {
			e := cascade.Entry{Namespace: namespace, Key: key(name, i)}
			if i%chain > 0 {
				e.Parent = key(name, i-1)
			}
			if err := b.put(ctx, e, p); err != nil {
				return fmt.Errorf("put of block %d: %w", i, err)
			}
		}
		if i%chain == chain-1 {
			progress()
		}
	}
	_, err := b.store.Drain(ctx)
	return err
}

// put puts a block. Where the disk falls behind for long the store refuses it at first, as a
// rank would its client.
func (b *bench) put(ctx context.Context, e cascade.Entry, p []byte) error {
	for {
		_, err := b.store.Put(ctx, e, p, nil)
		if !errors.Is(err, cascade.ErrNoRoom) || ctx.Err() != nil {
			return err
		}
		b.refused++
	}
}

// settleWait is how long the rank may take to leave what is cold to its index.
const settleWait = 5 * time.Minute

// settle waits until the number of names in memory has not changed for a while.
func (b *bench) settle(ctx context.Context) error {
	last, same := -1, 0
	for end := time.Now().Add(settleWait); time.Now().Before(end) && same < 15; {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		if n := b.store.Stats().Names; n == last {
			same++
		} else {
			last, same = n, 0
		}
	}
	return nil
}

// ask times probes and gets of blocks that are cold, each of another chain.
func (b *bench) ask(ctx context.Context, res *Result) error {
	chains := b.o.Blocks / chain * 9 / 10 // the last ones may be in memory
	rng := rand.New(rand.NewPCG(1, 2))
	err := b.profiled("probe", func() (err error) {
		res.Probe, err = b.probes(ctx, rng, chains)
		return err
	})
	if err != nil {
		return err
	}
	return b.profiled("get", func() (err error) {
		res.Get, res.Read, err = b.gets(ctx, rng, chains*chain)
		res.GetExtra = kit.Round(res.Get - res.Read)
		return err
	})
}

// probes returns what a probe of one of so many chains takes.
func (b *bench) probes(ctx context.Context, rng *rand.Rand, chains int) (median float64, err error) {
	var times []float64
	for range b.o.Samples {
		head := rng.IntN(chains) * chain
		keys := make([]string, chain)
		for i := range keys {
			keys[i] = key(0, head+i)
		}
		began := time.Now()
		hits := b.store.Probe(ctx, namespace, keys).Hits
		if times = append(times, micros(began)); hits != chain {
			return 0, fmt.Errorf("%w: a probe hits %d of %d", kit.ErrWrong, hits, chain)
		}
	}
	return kit.Median(times), nil
}

// gets returns what a get of one of so many blocks takes, and a read of its place alone.
func (b *bench) gets(ctx context.Context, rng *rand.Rand, blocks int) (got, alone float64, err error) {
	var gets, reads []float64
	for range b.o.Samples {
		i := rng.IntN(blocks)
		want := b.content(i)
		found := b.cold.Catalogue().Peek(namespace, []string{key(0, i)})[0]
		dst := make([]byte, len(want))
		read := func() error {
			began := time.Now()
			err := b.cold.ReadSegment(ctx, found.Segment, found.Info, dst)
			reads = append(reads, micros(began))
			return err
		}
		get := func() error {
			began := time.Now()
			v, err := b.store.Get(ctx, namespace, key(b.o.Names-1, i))
			gets = append(gets, micros(began))
			if err != nil {
				return err
			}
			defer v.Release()
			if block.CRC(v.Bytes()) != block.CRC(want) {
				return fmt.Errorf("%w: block %d", kit.ErrWrong, i)
			}
			return nil
		}
		if err := errors.Join(read(), get()); err != nil {
			return 0, 0, err
		}
	}
	return kit.Median(gets), kit.Median(reads), nil
}

func micros(since time.Time) float64 { return float64(time.Since(since).Nanoseconds()) / 1000 }
