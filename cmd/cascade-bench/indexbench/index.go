package indexbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/lustre/index"
)

// Options choose a measurement of the index of segments. The zero value
// measures five million blocks in the system's folder for temporary files.
type Options struct {
	Entries int    // blocks, each with a name in a chain; default 5,000,000
	Rebuild int    // blocks of the rebuild; default 1,000,000, at most Entries
	Dir     string // on a local disk; a folder is made in it and removed
	Samples int    // of each kind of look-up; default 200,000, of chains a 50th

	Progress func(done, total int) // called now and then, by one goroutine; may be nil
}

// Result is the outcome of Run. Times are in microseconds unless they
// say otherwise.
type Result struct {
	Entries int         `json:"entries"` // blocks, and as many names
	Keys    int         `json:"keys"`    // in the database: of each block one, of most names two
	Chain   int         `json:"chain"`   // blocks of a chain; eight chains share their first 128
	Machine kit.Machine `json:"machine"`

	LoadSeconds   float64 `json:"load_s"`
	SettleSeconds float64 `json:"settle_s"` // compactions after that

	PresentGet  Latency `json:"present_get"`  // a block by its id
	PresentName Latency `json:"present_name"` // a block by its name, hashing included
	AbsentProbe Latency `json:"absent_probe"` // a name that is not there, hashing included
	ChainProbe  Latency `json:"chain_probe"`  // of 512 names that are all there, hashing included
	Put         Latency `json:"put_batch"`    // of a chain of 16 new blocks

	GetBatch struct {
		Blocks  int     `json:"blocks"`
		Batch   Latency `json:"batch"`
		Singles Latency `json:"singles"`
		Names   Latency `json:"singles_by_name"`
		Ratio   float64 `json:"ratio"` // medians: singles by name by batch
		RatioID float64 `json:"ratio_by_id"`
	} `json:"get_batch"`

	Memory struct {
		RSS    int64  `json:"rss_bytes"` // of the process more than before, look-ups done
		Heap   int64  `json:"heap_bytes"`
		Cache  int64  `json:"cache_bytes"`
		Buffer uint64 `json:"buffer_bytes"`
	} `json:"memory"`
	DiskBytes uint64  `json:"disk_bytes"`
	WriteAmp  float64 `json:"write_amp"`
	ReadAmp   int     `json:"read_amp"`
	FilterHit float64 `json:"filter_hit_rate"`

	ReopenSeconds float64 `json:"reopen_s"`
	Rebuild       struct {
		Blocks   int     `json:"blocks"`
		Segments int     `json:"segments"`
		Bytes    int64   `json:"footer_bytes"`
		Seconds  float64 `json:"seconds"` // from files that are not in the page cache, until all can be found
	} `json:"rebuild"`
}

// Latency is how long one operation took.
type Latency struct {
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	Ops int     `json:"ops"`
}

// latencyOf sorts took.
func latencyOf(took []time.Duration) Latency {
	if len(took) == 0 {
		return Latency{}
	}
	slices.Sort(took)
	at := func(q float64) float64 {
		return kit.Round(float64(took[min(len(took)-1, int(q*float64(len(took))))]) / float64(time.Microsecond))
	}
	return Latency{P50: at(0.5), P99: at(0.99), Ops: len(took)}
}

func (o Options) withDefaults() Options {
	o.Entries = cmp.Or(o.Entries, 5_000_000)
	o.Rebuild = cmp.Or(o.Rebuild, min(1_000_000, o.Entries))
	o.Samples = cmp.Or(o.Samples, 200_000)
	return o
}

// Run measures look-ups in an index of Entries blocks, with the page cache as
// the load left it, then how long it takes to open it again and to fill an empty
// one. Errors: kit.ErrBadOption, kit.ErrWrong, and those of the index.
func Run(ctx context.Context, o Options) (res *Result, err error) {
	o = o.withDefaults()
	if o.Entries < chainBlocks || o.Rebuild < 1 || o.Rebuild > o.Entries || o.Samples < 100 {
		return nil, fmt.Errorf("%w: %d entries, want %d or more; rebuild of %d, want 1 to that; %d samples, want 100 or more",
			kit.ErrBadOption, o.Entries, chainBlocks, o.Rebuild, o.Samples)
	}
	dir, err := os.MkdirTemp(o.Dir, "cascade-bench-index-*")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{o: o, dir: dir, rand: rand.New(rand.NewPCG(1, 2)), res: &Result{
		Entries: o.Entries, Chain: chainBlocks, Machine: kit.ReadMachine(),
	}}
	steps := []func(context.Context) error{b.load, b.gets, b.probes, b.batches, b.puts, b.memory, b.reopen, b.rebuild}
	progress := kit.Progress(len(steps), o.Progress)
	for _, step := range steps {
		if err := errors.Join(ctx.Err(), step(ctx)); err != nil {
			return nil, errors.Join(err, b.close())
		}
		progress()
	}
	return b.res, b.close()
}

// bench is the index under measurement.
type bench struct {
	o    Options
	dir  string
	rand *rand.Rand
	res  *Result
	x    *index.Index
	base footprint // of the process before there was an index
}

func (b *bench) close() error {
	if b.x == nil {
		return nil
	}
	err := b.x.Close()
	b.x = nil
	return err
}

// load fills the index as recovery does and waits until it rests.
func (b *bench) load(ctx context.Context) (err error) {
	b.base = readFootprint()
	if b.x, err = index.Open(b.options()); err != nil {
		return err
	}
	began := time.Now()
	if err := b.x.Load(ctx, batches(b.o.Entries)); err != nil {
		return err
	}
	b.res.LoadSeconds = kit.Since(began)
	began = time.Now()
	if err := Rest(ctx, b.x, 500*time.Millisecond, time.Minute); err != nil {
		return err
	}
	b.res.SettleSeconds = kit.Since(began)
	return nil
}

// Rest waits until an index has made no compaction for a while, but no longer
// than most: whatever is due then stays due.
func Rest(ctx context.Context, x *index.Index, quiet, most time.Duration) error {
	since, compactions := time.Now(), int64(-1)
	err := kit.Until(ctx, quiet/5, most, func() (bool, error) {
		s := x.Stats()
		if s.Compactions != compactions || s.Compacting > 0 {
			since, compactions = time.Now(), s.Compactions
		}
		return time.Since(since) >= quiet, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = ctx.Err()
	}
	return err
}

// timed runs one look-up for each sample; prepare is not timed.
func timed[T any](ops int, prepare func() T, run func(T) error) (Latency, error) {
	took := make([]time.Duration, 0, ops)
	for range ops {
		arg := prepare()
		began := time.Now()
		err := run(arg)
		took = append(took, time.Since(began))
		if err != nil {
			return Latency{}, err
		}
	}
	return latencyOf(took), nil
}

func (b *bench) some() uint64 { return b.rand.Uint64N(uint64(b.o.Entries)) }

func (b *bench) gets(context.Context) (err error) {
	ns := index.NamespaceOf(namespace)
	b.res.PresentGet, err = timed(b.o.Samples, b.some, func(n uint64) error {
		_, err := b.x.Get(idOf(n))
		return err
	})
	if err != nil {
		return err
	}
	b.res.PresentName, err = timed(b.o.Samples, func() string { return keyOf(b.some()) }, func(k string) error {
		_, _, err := b.x.Find(ns.Key(k))
		return err
	})
	return err
}

func (b *bench) probes(context.Context) (err error) {
	ns := index.NamespaceOf(namespace)
	absent := func() string { return keyOf(1<<62 + b.rand.Uint64N(1<<40)) }
	b.res.AbsentProbe, err = timed(b.o.Samples, absent, func(k string) error {
		return b.probe([]index.Key{ns.Key(k)}, 0)
	})
	if err != nil {
		return err
	}
	const long = 512
	chain := make([]index.Key, long)
	b.res.ChainProbe, err = timed(b.o.Samples/50, func() []string { return b.chain(long) }, func(texts []string) error {
		for i, k := range texts {
			chain[i] = ns.Key(k)
		}
		return b.probe(chain, long)
	})
	return err
}

func (b *bench) probe(chain []index.Key, want int) error {
	n := 0
	err := b.x.Probe(chain, func(_ int, p *index.Presence) bool {
		found := p != nil && !p.Lost
		if found {
			n++
		}
		return found
	})
	if err == nil && n != want {
		err = fmt.Errorf("%w: probe of %d names found %d, not %d", kit.ErrWrong, len(chain), n, want)
	}
	return err
}

// chain returns the first keys of a chain that is stored whole.
func (b *bench) chain(long int) []string {
	c := b.rand.Uint64N(uint64(b.o.Entries / chainBlocks))
	out := make([]string, long)
	for i := range out {
		out[i] = keyOf(numberOf(c, uint64(i)))
	}
	return out
}

// batches compares one look-up of many adjacent blocks with many of one.
func (b *bench) batches(context.Context) (err error) {
	const long = 1000
	ops, ns := b.o.Samples/1000+10, index.NamespaceOf(namespace)
	chain, found := make([]index.Key, long), make([]index.Entry, long)
	prepare := func() []index.Key {
		for i, k := range b.chain(long) {
			chain[i] = ns.Key(k)
		}
		return chain
	}
	batch := func(chain []index.Key) error {
		n, err := b.x.FindBatch(chain, found)
		if err == nil && n != long {
			err = fmt.Errorf("%w: find_batch found %d of %d", kit.ErrWrong, n, long)
		}
		return err
	}
	g := &b.res.GetBatch
	g.Blocks = long
	if g.Batch, err = timed(ops, prepare, batch); err != nil {
		return err
	}
	if g.Names, err = timed(ops, prepare, func(chain []index.Key) error {
		for _, k := range chain {
			if _, _, err := b.x.Find(k); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if g.Singles, err = timed(ops, func() error { return batch(prepare()) }, func(err error) error {
		for i := 0; i < long && err == nil; i++ {
			_, err = b.x.Get(found[i].Block.Info.ID)
		}
		return err
	}); err != nil {
		return err
	}
	g.Ratio, g.RatioID = kit.Round(g.Names.P50/g.Batch.P50), kit.Round(g.Singles.P50/g.Batch.P50)
	return nil
}

func (b *bench) puts(ctx context.Context) (err error) {
	next := uint64(1 << 61)
	b.res.Put, err = timed(b.o.Samples/100, func() index.Batch {
		next += chainBlocks
		return newBatch(index.Segment{Rank: 1, Incarnation: 2, File: 1}, next-1<<61, next, 16)
	}, func(batch index.Batch) error { return b.x.PutBatch(ctx, batch) })
	return err
}

func (b *bench) memory(context.Context) error {
	now, s := readFootprint(), b.x.Stats()
	b.res.Keys = 3*b.o.Entries - runsOf(b.o.Entries)
	m := &b.res.Memory
	m.RSS, m.Heap = now.rss-b.base.rss, now.heap-b.base.heap
	m.Cache, m.Buffer = s.CacheBytes, s.MemoryBytes
	b.res.DiskBytes, b.res.WriteAmp, b.res.ReadAmp = s.DiskBytes, kit.Round(s.WriteAmp), s.ReadAmp
	if all := s.FilterHits + s.FilterMisses; all > 0 {
		b.res.FilterHit = kit.Round(float64(s.FilterHits) / float64(all))
	}
	return b.x.Err()
}

// reopen measures Open up to its first answer.
func (b *bench) reopen(context.Context) (err error) {
	if err := b.close(); err != nil {
		return err
	}
	n := b.some()
	began := time.Now()
	if b.x, err = index.Open(b.options()); err != nil {
		return err
	}
	if _, err := b.x.Get(idOf(n)); err != nil {
		return fmt.Errorf("%w: after reopening: %w", kit.ErrWrong, err)
	}
	b.res.ReopenSeconds = kit.Since(began)
	return nil
}
