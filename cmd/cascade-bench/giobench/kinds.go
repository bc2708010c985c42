package giobench

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/gpu/gio"
)

// kindRounds are the rounds of Mixed and Commands, at most.
const kindRounds = 5

// SmallBytes is the size of a small command.
const SmallBytes = 4 << 10

// Mixed compares reads and writes that are in flight together with the same reads followed by
// the same writes (Tutti Fig. 6). In both cases the depth is that of all I/Os under way.
type Mixed struct {
	Bytes    int64      `json:"bytes"`    // of a turn; half are read
	Apart    kit.Figure `json:"apart"`    // all bytes over the time of reads and then writes
	Together kit.Figure `json:"together"` // all bytes over the time until both have ended
	Ratio    float64    `json:"ratio"`    // apart over together
	Ratios   []float64  `json:"ratios"`   // by round
	Reads    Pair       `json:"reads"`    // bytes read over the time until the last of them
	Writes   Pair       `json:"writes"`
}

// Pair is one direction without the other, and beside it.
type Pair struct {
	Apart    kit.Figure `json:"apart"`
	Together kit.Figure `json:"together"`
}

// Commands compares commands of BlockBytes with such of SmallBytes: the same bytes at
// the same number of commands under way (Tutti Fig. 10).
type Commands struct {
	Bytes int64 `json:"bytes"` // of a turn
	Read  Sizes `json:"read"`
	Write Sizes `json:"write"`
}

// Sizes is one direction of Commands.
type Sizes struct {
	Large  Side      `json:"large"`
	Small  Side      `json:"small"`
	Ratio  float64   `json:"ratio"` // large over small, in bytes a second
	Ratios []float64 `json:"ratios"`
}

// kinds measures kinds of I/O against each other. The first half of the file is read
// and the second half is written. It is used by one goroutine.
type kinds struct {
	*rig
	bytes  int64 // of the data memory, and of each half of the file
	stamp  uint64
	errors int

	directions [2][2][]float64 // rates of Mixed: read or write; apart or together
	cpu        [4]usage        // by way of Commands
}

// runKinds fills in Mixed and Commands.
func runKinds(ctx context.Context, o Options, name string, rounds int, res *Result, progress func()) (err error) {
	k := &kinds{bytes: o.Bytes}
	if k.rig, err = openRig(o, name, os.O_RDWR, iocbs, gio.MaxIOCTX); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	if err := k.device.resume(); err != nil {
		return err
	}
	total := max(o.Bytes/4, iocbs*BlockBytes)
	ways := []func(context.Context) (float64, error){k.apart, k.together}
	for way, size := range []int64{BlockBytes, SmallBytes, BlockBytes, SmallBytes} {
		op := []gio.Op{gio.Read, gio.Write}[way/2]
		ways = append(ways, func(ctx context.Context) (float64, error) { return k.commands(ctx, way, op, size, total) })
	}
	rates, err := kit.Turns(rounds, len(ways), func(_, way int) (float64, error) {
		rate, err := ways[way](ctx)
		return rate, errors.Join(err, k.device.alive())
	}, progress)
	res.Errors += k.errors
	if err != nil {
		return err
	}
	pair := func(op int) Pair {
		return Pair{kit.FigureOf(k.directions[op][0]), kit.FigureOf(k.directions[op][1])}
	}
	res.Mixed = Mixed{Bytes: o.Bytes, Apart: kit.FigureOf(rates[0]), Together: kit.FigureOf(rates[1]), Reads: pair(0), Writes: pair(1)}
	res.Mixed.Ratios, res.Mixed.Ratio = kit.Ratios(rates[0], rates[1])
	sizes := func(way int) (s Sizes) {
		gigabytes := float64(total) * float64(rounds) / kit.Giga
		s.Large, s.Small = sideOf(rates[2+way], k.cpu[way], gigabytes), sideOf(rates[3+way], k.cpu[way+1], gigabytes)
		s.Ratios, s.Ratio = kit.Ratios(rates[2+way], rates[3+way])
		return s
	}
	res.Commands = Commands{Bytes: total, Read: sizes(0), Write: sizes(2)}
	return nil
}

// batch is I/Os of one direction and size, each between a place of the data memory and a
// block of the file.
type batch struct {
	op     gio.Op
	size   int64
	first  int     // place in the data memory of the first one, in blocks
	blocks []int64 // of the file
}

// draw chooses blocks of the half of the file that an operation has, and fills the memory
// that is written, or clears the one that is read into.
func (k *kinds) draw(op gio.Op, size, total, at int64) batch {
	b := batch{op: op, size: size, first: int(at / size), blocks: make([]int64, total/size)}
	all := rand.Perm(int(k.bytes / size))
	for i := range b.blocks {
		b.blocks[i] = int64(all[i])
		if op == gio.Write {
			b.blocks[i] += k.bytes / size
		}
	}
	memory := k.data[at:][:total]
	if op == gio.Read {
		clear(memory)
		return b
	}
	k.stamp += 1 << 40 // above all offsets: what an earlier turn wrote is other bytes
	for i := range b.blocks {
		fill(memory[int64(i)*size:][:size], k.stamp+uint64(b.blocks[i]*size))
	}
	return b
}

// part is the I/Os from from to to as one IOCB.
func (b *batch) part(from, to int) part {
	return part{b.op, to - from, func(i int) gio.IOCTX { return transfer(b.first+from+i, b.blocks[from+i], b.size) }}
}

// move does a batch by both IOCBs, as often as it takes, and returns the time from each
// event to the last completion, added up.
func (k *kinds) move(ctx context.Context, b batch) (took time.Duration, err error) {
	for from := 0; from < len(b.blocks); {
		n := min(len(b.blocks)-from, iocbs*k.num)
		parts := []part{b.part(from, from+(n+1)/2)}
		if n > 1 {
			parts = append(parts, b.part(from+(n+1)/2, from+n))
		}
		ids, began, err := k.start(parts...)
		if err != nil {
			return 0, err
		}
		failed, err := k.wait(ctx, ids...)
		took += time.Since(began)
		k.errors += failed
		if err != nil {
			return 0, err
		}
		if err := k.queue.Release(ids...); err != nil {
			return 0, err
		}
		from += n
	}
	return took, nil
}

// verify compares what was read, or reads what was written and compares that.
func (k *kinds) verify(ctx context.Context, b batch) error {
	var stamp uint64
	if b.op == gio.Write {
		stamp = k.stamp
		b.op = gio.Read
		clear(k.memory(b))
		if _, err := k.move(ctx, b); err != nil {
			return err
		}
	}
	memory := k.memory(b)
	for i, at := range b.blocks {
		if !isBlock(memory[int64(i)*b.size:][:b.size], stamp+uint64(at*b.size)) {
			k.errors++
		}
	}
	return nil
}

// memory is where a batch's bytes are.
func (k *kinds) memory(b batch) []byte {
	return k.data[int64(b.first)*b.size:][:int64(len(b.blocks))*b.size]
}

// note records the rate of a direction in a turn of Mixed.
func (k *kinds) note(op gio.Op, together int, took time.Duration) {
	rate := float64(k.bytes/2) / kit.Mega / took.Seconds()
	k.directions[op][together] = append(k.directions[op][together], rate)
}

// pair draws a turn of Mixed.
func (k *kinds) pair() (reads, writes batch) {
	half := k.bytes / 2
	return k.draw(gio.Read, BlockBytes, half, 0), k.draw(gio.Write, BlockBytes, half, half)
}

// apart reads and then writes.
func (k *kinds) apart(ctx context.Context) (float64, error) {
	reads, writes := k.pair()
	read, err := k.move(ctx, reads)
	if err != nil {
		return 0, err
	}
	written, err := k.move(ctx, writes)
	if err != nil {
		return 0, err
	}
	k.note(gio.Read, 0, read)
	k.note(gio.Write, 0, written)
	return float64(k.bytes) / kit.Mega / (read + written).Seconds(), errors.Join(k.verify(ctx, reads), k.verify(ctx, writes))
}

// together reads and writes at once, an IOCB for each.
func (k *kinds) together(ctx context.Context) (float64, error) {
	reads, writes := k.pair()
	ids, began, err := k.start(reads.part(0, len(reads.blocks)), writes.part(0, len(writes.blocks)))
	if err != nil {
		return 0, err
	}
	var took [iocbs]time.Duration
	var failed [iocbs]int
	var errs [iocbs]error
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() {
			failed[i], errs[i] = k.wait(ctx, id)
			took[i] = time.Since(began)
		})
	}
	all.Wait()
	k.errors += failed[0] + failed[1]
	if err := cmp.Or(errs[0], errs[1]); err != nil {
		return 0, err
	}
	k.note(gio.Read, 1, took[0])
	k.note(gio.Write, 1, took[1])
	err = errors.Join(k.queue.Release(ids...), k.verify(ctx, reads), k.verify(ctx, writes))
	return float64(k.bytes) / kit.Mega / max(took[0], took[1]).Seconds(), err
}

// commands does a turn of Commands.
func (k *kinds) commands(ctx context.Context, way int, op gio.Op, size, total int64) (float64, error) {
	b := k.draw(op, size, total, 0)
	var took time.Duration
	err := k.cpu[way].spend(func() (err error) {
		took, err = k.move(ctx, b)
		return err
	})
	if err != nil {
		return 0, err
	}
	return float64(total) / kit.Mega / took.Seconds(), k.verify(ctx, b)
}

// fill writes what lies at an offset.
func fill(p []byte, off uint64) {
	for i := 0; i < len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], word(off+uint64(i)))
	}
}
