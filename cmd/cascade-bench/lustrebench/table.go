package lustrebench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/lustre"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// bench is one run.
type bench struct {
	o      Options
	home   string
	access segment.Access
	phases int // names folders

	progress func() // to be called after each round
}

// putTogether is how much one Put of the aggregated side stores, in bytes.
const putTogether = 4 << 20

func (b *bench) folder() string {
	b.phases++
	return filepath.Join(b.home, strconv.Itoa(b.phases))
}

// remove takes a phase's folder away, and leaves nothing of that to be done in
// the next phase.
func (b *bench) remove(dir string) error {
	return errors.Join(os.RemoveAll(dir), kit.Settle(b.home))
}

// set is blocks of one size in memory, and room to read them into.
type set struct {
	size  int
	items []tiers.Item
	from  cells
	room  cells
}

// newSet fills the blocks with random bytes; those of one seed are the same.
func newSet(n, size int, seed uint64) (*set, error) {
	s := &set{size: size, items: make([]tiers.Item, n)}
	for _, c := range []*cells{&s.from, &s.room} {
		if err := c.open(n, size); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	random := rand.NewPCG(seed, uint64(size))
	for i := range s.items {
		p := s.from.at(i)
		kit.FillRandom(p, random)
		s.items[i] = tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, p), Size: int64(size), CRC: block.CRC(p)}, Data: p}
	}
	return s, nil
}

// check compares what was read with what was written, and makes it wrong again
// for the next time.
func (s *set) check() error {
	for i, it := range s.items {
		p := s.room.at(i)
		if !bytes.Equal(p, it.Data) {
			return fmt.Errorf("%w: blocks of %d bytes", kit.ErrWrong, s.size)
		}
		clear(p)
	}
	return nil
}

func (s *set) close() error { return errors.Join(s.from.close(), s.room.close()) }

// rate is how fast the set was moved, in MB/s.
func (s *set) rate(took time.Duration) float64 {
	return float64(len(s.items)) * float64(s.size) / kit.Mega / took.Seconds()
}

// cells is memory for blocks of one size, as a rank's arena is: mapped before it is
// used, in huge pages, and each block in the room that the arena gives one of
// its size.
type cells struct {
	mapping    *arena.Mapping
	size, room int
}

func (c *cells) open(n, size int) (err error) {
	c.size, c.room = size, int(arena.RoundSize(int64(size)))
	if c.mapping, err = arena.MapAnonymous(int64(n * c.room)); err == nil {
		err = c.mapping.Commit(0, int64(n*c.room))
	}
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

// at is block i. Its capacity is that of its cell.
func (c *cells) at(i int) []byte { return c.mapping.Bytes()[i*c.room:][:c.size:c.room] }

func (c *cells) close() error {
	if c.mapping == nil {
		return nil
	}
	return c.mapping.Close()
}

// form is one way to lay blocks out in files. Both calls return how fast the set
// was moved, in MB/s, by so many callers at once; what is read is cold and
// checked.
type form struct {
	write func(ctx context.Context, dir string, s *set, callers int) (rate float64, err error)
	read  func(ctx context.Context, dir string, s *set, callers int) (rate float64, err error)
}

// The forms that are compared, by number.
const (
	inSegments = iota
	inFiles
	inOne // long file
)

func (b *bench) forms() []form {
	return []form{inSegments: {b.writeSegments, b.readSegments}, inFiles: {b.writeFiles, b.readFiles}, inOne: {b.writeLong, b.readLong}}
}

// row measures one size of block.
func (b *bench) row(ctx context.Context, size int) (row Blocks, err error) {
	s, err := newSet(max(1, int(b.o.Bytes)/size), size, rand.Uint64())
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	forms, long := b.forms(), b.folder()
	if _, err := forms[inOne].write(ctx, long, s, 1); err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, b.remove(long)) }()
	const many, bound = 2, 4           // segments and files by one caller, the same by many, the long file
	writes := make([][]float64, bound) // of all but the long file
	reads, err := kit.Turns(b.o.Rounds, bound+1, func(_, way int) (float64, error) {
		if way == bound {
			return forms[inOne].read(ctx, long, s, b.o.Depth)
		}
		write, read, err := b.moved(ctx, forms[way%2], s, []int{1, b.o.Depth}[way/many])
		writes[way] = append(writes[way], write)
		return read, err
	}, b.progress)
	if err != nil {
		return row, err
	}
	row = Blocks{Row: rowOf(size, len(s.items), writes[:many], reads[:many], reads[bound]), Parallel: pairOf(writes[many:], reads[many:bound])}
	return row, nil
}

// moved writes and reads a set in a folder of its own.
func (b *bench) moved(ctx context.Context, f form, s *set, callers int) (write, read float64, err error) {
	dir := b.folder()
	if write, err = f.write(ctx, dir, s, callers); err == nil {
		read, err = f.read(ctx, dir, s, callers)
	}
	return write, read, errors.Join(err, b.remove(dir))
}

// rowOf summarizes the rates of one size: those of segments and of files, and
// those of the long file.
func rowOf(size, count int, writes, reads [][]float64, long []float64) Row {
	_, bound := kit.Ratios(long, reads[inFiles])
	return Row{Bytes: size, Count: count, Pair: pairOf(writes, reads), LongFileMBps: kit.Median(long), ReadBound: bound}
}

// pairOf summarizes rates: first those of segments, then those of files.
func pairOf(writes, reads [][]float64) Pair {
	p := Pair{
		Aggregated: Side{kit.Median(writes[0]), kit.Median(reads[0])},
		PerFile:    Side{kit.Median(writes[1]), kit.Median(reads[1])},
	}
	p.WriteRatios, p.SpeedupWrite = kit.Ratios(writes[0], writes[1])
	p.ReadRatios, p.SpeedupRead = kit.Ratios(reads[0], reads[1])
	return p
}

// store puts a set into segments in a folder and returns how long that took.
func (b *bench) store(ctx context.Context, dir string, s *set, callers int) (took time.Duration, err error) {
	t, err := lustre.Open(lustre.Options{Dir: dir})
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	together := max(1, putTogether/s.size)
	puts := (len(s.items) + together - 1) / together
	return kit.Parallel(callers, puts, func(_, i int) error {
		return t.Put(ctx, s.items[i*together:min((i+1)*together, len(s.items))]...)
	})
}

// cold opens the segments of a folder as the next job finds them, with nothing
// of them in the page cache.
func (b *bench) cold(dir string) (*lustre.Tier, error) {
	t, err := lustre.Open(lustre.Options{Dir: dir})
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	b.access = t.Access()
	if err = t.Recover(func(tiers.Entry) error { return nil }); err == nil {
		err = kit.DropCache(dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: %w", err), t.Close())
	}
	return t, nil
}

func (b *bench) writeSegments(ctx context.Context, dir string, s *set, callers int) (float64, error) {
	took, err := b.store(ctx, dir, s, callers)
	return s.rate(took), err
}

func (b *bench) readSegments(ctx context.Context, dir string, s *set, callers int) (float64, error) {
	t, err := b.cold(dir)
	if err != nil {
		return 0, err
	}
	share := (len(s.items) + callers - 1) / callers
	took, err := kit.Parallel(callers, callers, func(_, i int) error {
		return readTogether(ctx, t, s, min(i*share, len(s.items)), min((i+1)*share, len(s.items)))
	})
	if err = errors.Join(err, t.Close()); err == nil {
		err = s.check()
	}
	return s.rate(took), err
}

// readTogether reads blocks from one number to another with one batch.
func readTogether(ctx context.Context, t *lustre.Tier, s *set, from, to int) error {
	reads := make([]tiers.Read, 0, to-from)
	for i := from; i < to; i++ {
		p, err := t.Pin(s.items[i].Info.ID)
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		defer p.Release()
		reads = append(reads, tiers.Read{Pin: p, Dst: s.room.at(i), Over: true})
	}
	return errors.Join(t.ReadBatch(ctx, reads)...)
}

// fileOf is the file of block i where each has its own.
func fileOf(dir string, s *set, i int) string { return filepath.Join(dir, s.items[i].Info.ID.String()) }

func (b *bench) writeFiles(ctx context.Context, dir string, s *set, callers int) (float64, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, fmt.Errorf("bench: one file per block: %w", err)
	}
	began := time.Now()
	_, err := kit.Parallel(callers, len(s.items), func(_, i int) error {
		return errors.Join(ctx.Err(), writeDurably(fileOf(dir, s, i), s.items[i].Data))
	})
	if err == nil {
		err = syncDir(dir)
	}
	took := time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("bench: one file per block: %w", err)
	}
	return s.rate(took), nil
}

func (b *bench) readFiles(ctx context.Context, dir string, s *set, callers int) (float64, error) {
	if err := kit.DropCache(dir); err != nil {
		return 0, err
	}
	took, err := kit.Parallel(callers, len(s.items), func(_, i int) error {
		return errors.Join(ctx.Err(), readWhole(fileOf(dir, s, i), s.room.at(i)))
	})
	if err != nil {
		return 0, fmt.Errorf("bench: one file per block: %w", err)
	}
	return s.rate(took), s.check()
}

func writeDurably(path string, p []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func readWhole(path string, p []byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = f.ReadAt(p, 0)
	return errors.Join(err, f.Close())
}

// The batch that is compared with single reads.
const (
	batchCount = 1000
	batchBytes = 8 << 10
)

// batch compares one batch with as many single reads.
func (b *bench) batch(ctx context.Context) (res Batch, err error) {
	s, err := newSet(batchCount, batchBytes, rand.Uint64())
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	dir := b.folder()
	if _, err := b.store(ctx, dir, s, 1); err != nil {
		return res, err
	}
	ways := []func(t *lustre.Tier) error{
		func(t *lustre.Tier) error { return readTogether(ctx, t, s, 0, len(s.items)) },
		func(t *lustre.Tier) error {
			for i, it := range s.items {
				if err := readOne(ctx, t, it.Info.ID, s.room.at(i)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	res, err = b.against(s, func(way int) (time.Duration, error) {
		t, err := b.cold(dir)
		if err != nil {
			return 0, err
		}
		began := time.Now()
		err = ways[way](t)
		took := time.Since(began)
		if err = errors.Join(err, t.Close()); err == nil {
			err = s.check()
		}
		return took, err
	})
	return res, errors.Join(err, os.RemoveAll(dir))
}

// against reads a set in two ways, in turns: 0 is the batch, 1 the single reads.
func (b *bench) against(s *set, read func(way int) (time.Duration, error)) (res Batch, err error) {
	rates, err := kit.Turns(b.o.Rounds, 2, func(_, way int) (float64, error) {
		took, err := read(way)
		return s.rate(took), err
	}, b.progress)
	if err != nil {
		return res, err
	}
	res = Batch{Bytes: s.size, Count: len(s.items), BatchMBps: kit.Median(rates[0]), SingleMBps: kit.Median(rates[1])}
	res.Speedups, res.Speedup = kit.Ratios(rates[0], rates[1])
	return res, nil
}

func readOne(ctx context.Context, t *lustre.Tier, id block.ID, dst []byte) error {
	p, err := t.Pin(id)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer p.Release()
	return p.ReadInto(ctx, dst)
}
