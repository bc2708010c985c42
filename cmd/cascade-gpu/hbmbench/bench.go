package hbmbench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/gpu/cuda"
	"cascadekv/gpu/hbm"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// copiers are the streams of a batch and of a tier, and the callers of the tier.
const copiers = 4

// patience bounds each wait for a copy.
const patience = time.Minute

// Options choose a measurement. Only Context is required.
type Options struct {
	Context    *cuda.Context // the caller's; it outlives the measurement
	BlockBytes int64         // a multiple of 4096; default 2 MiB
	Bytes      int64         // of a turn, whole blocks; default 512 MiB. Of device memory it takes twice as much, of host memory four times
	Rounds     int           // default 5
	Entries    int           // of the table of ids; default 262,144

	Progress func(done, total int) // called after each round, by one goroutine; may be nil
}

// Result is the outcome of Run. Ratios are medians over the rounds.
type Result struct {
	BlockBytes int64       `json:"block_bytes"`
	TurnBytes  int64       `json:"turn_bytes"`
	Rounds     int         `json:"rounds"`
	Errors     int         `json:"errors"` // blocks of other bytes
	Plain      Way         `json:"plain"`
	Batch      Way         `json:"batch"`
	Direct     Way         `json:"direct"`
	Bounced    Way         `json:"bounced"`
	Hash       Hash        `json:"hash"`
	Machine    kit.Machine `json:"machine"`
}

// Way is one way to copy blocks.
type Way struct {
	ToGPU        kit.Figure `json:"to_gpu"`
	FromGPU      kit.Figure `json:"from_gpu"`
	RatioToGPU   float64    `json:"ratio_to_gpu"` // over plain; 1 for that itself
	RatioFromGPU float64    `json:"ratio_from_gpu"`
}

func (o Options) withDefaults() (Options, error) {
	o.BlockBytes = cmp.Or(o.BlockBytes, 2<<20)
	o.Bytes = cmp.Or(o.Bytes, 512<<20)
	o.Rounds = cmp.Or(o.Rounds, 5)
	o.Entries = cmp.Or(o.Entries, 1<<18)
	if o.BlockBytes < 4096 || o.BlockBytes%4096 != 0 || o.Bytes < o.BlockBytes || o.Bytes%o.BlockBytes != 0 || o.Rounds < 1 || o.Entries < 1 {
		return o, fmt.Errorf("%w: blocks of %d bytes, %d bytes in a turn, %d rounds, %d ids: want pages, whole blocks, and at least one of each",
			kit.ErrBadOption, o.BlockBytes, o.Bytes, o.Rounds, o.Entries)
	}
	return o, nil
}

// memory is host memory of a turn: what goes out, and what comes back.
type memory struct{ out, back []byte }

// bench is one measurement, used by one goroutine.
type bench struct {
	o       Options
	arena   memory // pinned
	other   memory
	tier    *hbm.Tier
	device  cuda.DevicePtr
	streams []*cuda.Stream
	order   []int // place of each block on the device
	count   uint64
	errors  int
	undo    []func() error // in the order in which they were made
}

// Run copies by each way, alternating. Errors: kit.ErrBadOption, those of the driver and of
// the tier.
func Run(ctx context.Context, o Options) (_ *Result, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &bench{o: o, order: rand.Perm(int(o.Bytes / o.BlockBytes))}
	defer func() { err = errors.Join(err, b.close()) }()
	res := &Result{BlockBytes: o.BlockBytes, TurnBytes: o.Bytes, Rounds: o.Rounds, Machine: kit.ReadMachine()}
	if err := b.open(); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	ways := []func(context.Context) (time.Duration, error){
		b.plainTo, b.plainFrom, b.batchTo, b.batchFrom,
		func(ctx context.Context) (time.Duration, error) { return b.put(ctx, b.arena) },
		func(ctx context.Context) (time.Duration, error) { return b.get(ctx, b.arena) },
		func(ctx context.Context) (time.Duration, error) { return b.put(ctx, b.other) },
		func(ctx context.Context) (time.Duration, error) { return b.get(ctx, b.other) },
	}
	progress, warm := kit.Progress(o.Rounds, o.Progress), true
	rates, err := kit.Turns(o.Rounds+1, len(ways), func(_, way int) (float64, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		took, err := ways[way](ctx)
		return float64(o.Bytes) / kit.Mega / took.Seconds(), err
	}, func() {
		if !warm {
			progress()
		}
		warm = false
	})
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	for i := range rates {
		rates[i] = rates[i][1:] // the first round warms up
	}
	for i, w := range []*Way{&res.Plain, &res.Batch, &res.Direct, &res.Bounced} {
		w.ToGPU, w.FromGPU = kit.FigureOf(rates[2*i]), kit.FigureOf(rates[2*i+1])
		_, w.RatioToGPU = kit.Ratios(rates[2*i], rates[0])
		_, w.RatioFromGPU = kit.Ratios(rates[2*i+1], rates[1])
	}
	res.Errors = b.errors
	res.Hash, err = b.hash()
	return res, err
}

// open takes the memory of both sides.
func (b *bench) open() (err error) {
	size := int(b.o.Bytes)
	memory, err := unix.Mmap(-1, 0, 4*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("host memory of %d bytes: %w: set a smaller --size", 4*size, err)
	}
	b.undo = append(b.undo, func() error { return unix.Munmap(memory) })
	b.arena.out, b.arena.back, b.other.out, b.other.back = memory[:size], memory[size:][:size], memory[2*size:][:size], memory[3*size:]
	for i := 0; i < size; i += 8 {
		x := (uint64(i) + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
		binary.LittleEndian.PutUint64(b.arena.out[i:], x^x>>29)
	}
	copy(b.other.out, b.arena.out)
	const unit = 2 << 20
	pool := (b.o.BlockBytes + unit - 1) / unit * unit * int64(len(b.order))
	if b.tier, err = hbm.Open(hbm.Options{Context: b.o.Context, Bytes: pool, UnitBytes: unit, Copiers: copiers, Arena: memory[:2*size]}); err != nil {
		return err
	}
	b.undo = append(b.undo, b.tier.Close)
	if b.device, err = b.o.Context.Alloc(b.o.Bytes); err != nil {
		return err
	}
	b.undo = append(b.undo, func() error { return b.o.Context.Free(b.device) })
	for range copiers {
		s, err := b.o.Context.NewStream(0)
		if err != nil {
			return err
		}
		b.streams = append(b.streams, s)
		b.undo = append(b.undo, s.Destroy)
	}
	return nil
}

// close waits for what is still under way, and gives everything back. Where something does not
// end, what it may still use stays until the process ends.
func (b *bench) close() (err error) {
	for _, s := range b.streams {
		err = errors.Join(err, s.Synchronize())
	}
	for i := len(b.undo) - 1; i >= 0 && err == nil; i-- {
		err = b.undo[i]()
	}
	return err
}

// block is block i of host memory.
func (b *bench) block(memory []byte, i int) []byte {
	return memory[int64(i)*b.o.BlockBytes:][:b.o.BlockBytes]
}

// change makes all blocks that go out others than those of the turn before.
func (b *bench) change(memory []byte) {
	b.count++
	for i := range b.order {
		binary.LittleEndian.PutUint64(b.block(memory, i), b.count<<32|uint64(i))
	}
}

// compare counts blocks that came back with other bytes than went out.
func (b *bench) compare(m memory) {
	for i := range b.order {
		if !bytes.Equal(b.block(m.out, i), b.block(m.back, i)) {
			b.errors++
		}
	}
}

// queued runs f, which queues copies, and returns how long it took until all streams were done.
func (b *bench) queued(ctx context.Context, f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	for _, s := range b.streams {
		if err == nil {
			err = s.Await(ctx)
		}
	}
	return time.Since(began), err
}

// plain is one copy of everything.
func (b *bench) plain(ctx context.Context, toHost bool) (time.Duration, error) {
	return b.queued(ctx, func() error {
		if toHost {
			return b.streams[0].CopyToHost(b.arena.back, b.device)
		}
		return b.streams[0].CopyToDevice(b.device, b.arena.out)
	})
}

// batch is a copy for each block, on all streams.
func (b *bench) batch(ctx context.Context, toHost bool) (time.Duration, error) {
	var lists [copiers][]cuda.Copy
	host := b.arena.out
	if toHost {
		host = b.arena.back
	}
	for i, at := range b.order {
		lists[i%copiers] = append(lists[i%copiers], cuda.Copy{Device: b.device + cuda.DevicePtr(int64(at)*b.o.BlockBytes), Host: b.block(host, i), ToHost: toHost})
	}
	return b.queued(ctx, func() (err error) {
		for i, list := range lists {
			err = errors.Join(err, b.streams[i].CopyBatch(list))
		}
		return err
	})
}

// thereAndBack copies new blocks to the device and back, and compares them; the time is that of one
// direction.
func (b *bench) thereAndBack(ctx context.Context, copyBlocks func(ctx context.Context, toHost bool) (time.Duration, error), from bool) (time.Duration, error) {
	b.change(b.arena.out)
	clear(b.arena.back)
	there, err := copyBlocks(ctx, false)
	if err != nil {
		return 0, err
	}
	back, err := copyBlocks(ctx, true)
	if err != nil {
		return 0, err
	}
	b.compare(b.arena)
	if from {
		return back, nil
	}
	return there, nil
}

func (b *bench) plainTo(ctx context.Context) (time.Duration, error) {
	return b.thereAndBack(ctx, b.plain, false)
}

func (b *bench) plainFrom(ctx context.Context) (time.Duration, error) {
	return b.thereAndBack(ctx, b.plain, true)
}

func (b *bench) batchTo(ctx context.Context) (time.Duration, error) {
	return b.thereAndBack(ctx, b.batch, false)
}

func (b *bench) batchFrom(ctx context.Context) (time.Duration, error) {
	return b.thereAndBack(ctx, b.batch, true)
}

// put stores new blocks in the tier, and removes them again.
func (b *bench) put(ctx context.Context, m memory) (took time.Duration, err error) {
	items := b.items(m)
	took, err = b.store(ctx, items)
	return took, errors.Join(err, b.evict(items))
}

// get stores new blocks in the tier, reads them back, and removes them again.
func (b *bench) get(ctx context.Context, m memory) (took time.Duration, err error) {
	items := b.items(m)
	defer func() { err = errors.Join(err, b.evict(items)) }()
	if _, err = b.store(ctx, items); err != nil {
		return 0, err
	}
	clear(m.back)
	took, err = kit.Parallel(copiers, len(items), func(_, i int) error {
		pin, err := b.tier.Pin(items[i].Info.ID)
		if err != nil {
			return err
		}
		defer pin.Release()
		return pin.ReadInto(ctx, b.block(m.back, i))
	})
	if err == nil {
		b.compare(m)
	}
	return took, err
}

// items are new blocks. Their ids are numbers: what SHA-256 takes is measured apart.
func (b *bench) items(m memory) []tiers.Item {
	b.change(m.out)
	items := make([]tiers.Item, len(b.order))
	for i := range items {
		data := b.block(m.out, i)
		items[i] = tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, data[:8]), Size: b.o.BlockBytes, CRC: block.ExtendCRC(0, data)}, Data: data}
	}
	return items
}

func (b *bench) store(ctx context.Context, items []tiers.Item) (time.Duration, error) {
	return kit.Parallel(copiers, len(items), func(_, i int) error { return b.tier.Put(ctx, items[i]) })
}

func (b *bench) evict(items []tiers.Item) (err error) {
	for i := range items {
		if e := b.tier.Evict(items[i].Info.ID); !errors.Is(e, tiers.ErrNotFound) {
			err = errors.Join(err, e)
		}
	}
	return err
}
