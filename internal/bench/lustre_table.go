package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/lustre"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// lustreBench is one run of Lustre.
type lustreBench struct {
	o      LustreOptions
	home   string
	access segment.Access
	phases int // names folders
	done   int
	total  int
}

// putTogether is how much one Put of the aggregated side stores, in bytes.
const putTogether = 4 << 20

func (b *lustreBench) folder() string {
	b.phases++
	return filepath.Join(b.home, strconv.Itoa(b.phases))
}

// remove takes a phase's folder away, and leaves nothing of that to be done in
// the next phase.
func (b *lustreBench) remove(dir string) error {
	return errors.Join(os.RemoveAll(dir), settle(b.home))
}

func (b *lustreBench) progress() {
	b.done++
	if b.o.Progress != nil {
		b.o.Progress(b.done, b.total)
	}
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
		fillRandom(p, random)
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
			return fmt.Errorf("%w: blocks of %d bytes", ErrWrong, s.size)
		}
		clear(p)
	}
	return nil
}

func (s *set) close() error { return errors.Join(s.from.close(), s.room.close()) }

// rate is how fast the set was moved, in MB/s.
func (s *set) rate(took time.Duration) float64 {
	return float64(len(s.items)) * float64(s.size) / mega / took.Seconds()
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

// at is block i. What its capacity says more is its own.
func (c *cells) at(i int) []byte { return c.mapping.Bytes()[i*c.room:][:c.size:c.room] }

func (c *cells) close() error {
	if c.mapping == nil {
		return nil
	}
	return c.mapping.Close()
}

// form is one way to lay blocks out in files. Both calls tell how fast the set
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

func (b *lustreBench) forms() []form {
	return []form{inSegments: {b.writeSegments, b.readSegments}, inFiles: {b.writeFiles, b.readFiles}, inOne: {b.writeLong, b.readLong}}
}

// row measures one size of block.
func (b *lustreBench) row(ctx context.Context, size int) (row LustreBlocks, err error) {
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
	var writes, reads [4][]float64 // segments and files by one caller, and by many
	var bound []float64
	for r := range b.o.Rounds {
		for turn := range writes {
			i := (turn + r) % len(writes)
			w, rd, err := b.moved(ctx, forms[i%2], s, []int{1, b.o.Depth}[i/2])
			if err != nil {
				return row, err
			}
			writes[i], reads[i] = append(writes[i], w), append(reads[i], rd)
		}
		rate, err := forms[inOne].read(ctx, long, s, b.o.Depth)
		if err != nil {
			return row, err
		}
		bound = append(bound, rate)
		b.progress()
	}
	row = LustreBlocks{LustreRow: rowOf(size, len(s.items), writes[:2], reads[:2], bound), Parallel: pairOf(writes[2:], reads[2:])}
	return row, nil
}

// moved writes and reads a set in a folder of its own.
func (b *lustreBench) moved(ctx context.Context, f form, s *set, callers int) (write, read float64, err error) {
	dir := b.folder()
	if write, err = f.write(ctx, dir, s, callers); err == nil {
		read, err = f.read(ctx, dir, s, callers)
	}
	return write, read, errors.Join(err, b.remove(dir))
}

// rowOf sums the rates of one size up: those of segments and of files, and those
// of the long file.
func rowOf(size, count int, writes, reads [][]float64, long []float64) LustreRow {
	return LustreRow{
		Bytes: size, Count: count, LustrePair: pairOf(writes, reads),
		LongFileMBps: round(median(long)), ReadBound: round(median(ratios(long, reads[inFiles]))),
	}
}

// pairOf sums rates up: first those of segments, then those of files.
func pairOf(writes, reads [][]float64) LustrePair {
	p := LustrePair{
		Aggregated:  LustreSide{round(median(writes[0])), round(median(reads[0]))},
		PerFile:     LustreSide{round(median(writes[1])), round(median(reads[1]))},
		WriteRatios: ratios(writes[0], writes[1]), ReadRatios: ratios(reads[0], reads[1]),
	}
	p.SpeedupWrite, p.SpeedupRead = round(median(p.WriteRatios)), round(median(p.ReadRatios))
	return p
}

// each calls fn for 0 to n-1 from so many goroutines and tells how long all of
// it took.
func each(callers, n int, fn func(caller, i int) error) (time.Duration, error) {
	var next atomic.Int64
	failed := make([]error, callers)
	var all sync.WaitGroup
	began := time.Now()
	for w := range callers {
		all.Go(func() {
			for failed[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				failed[w] = fn(w, i)
			}
		})
	}
	all.Wait()
	return time.Since(began), errors.Join(failed...)
}

// store puts a set into segments in a folder and tells how long that took.
func (b *lustreBench) store(ctx context.Context, dir string, s *set, callers int) (took time.Duration, err error) {
	t, err := lustre.Open(lustre.Options{Dir: dir})
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	together := max(1, putTogether/s.size)
	puts := (len(s.items) + together - 1) / together
	return each(callers, puts, func(_, i int) error {
		return t.Put(ctx, s.items[i*together:min((i+1)*together, len(s.items))]...)
	})
}

// cold opens the segments of a folder as the next job finds them, with nothing
// of them in the page cache.
func (b *lustreBench) cold(dir string) (*lustre.Tier, error) {
	t, err := lustre.Open(lustre.Options{Dir: dir})
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	b.access = t.Access()
	if err = t.Recover(func(tiers.Entry) error { return nil }); err == nil {
		err = dropCache(dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: %w", err), t.Close())
	}
	return t, nil
}

func (b *lustreBench) writeSegments(ctx context.Context, dir string, s *set, callers int) (float64, error) {
	took, err := b.store(ctx, dir, s, callers)
	return s.rate(took), err
}

func (b *lustreBench) readSegments(ctx context.Context, dir string, s *set, callers int) (float64, error) {
	t, err := b.cold(dir)
	if err != nil {
		return 0, err
	}
	share := (len(s.items) + callers - 1) / callers
	took, err := each(callers, callers, func(_, i int) error {
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

func (b *lustreBench) writeFiles(ctx context.Context, dir string, s *set, callers int) (float64, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, fmt.Errorf("bench: one file per block: %w", err)
	}
	began := time.Now()
	_, err := each(callers, len(s.items), func(_, i int) error {
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

func (b *lustreBench) readFiles(ctx context.Context, dir string, s *set, callers int) (float64, error) {
	if err := dropCache(dir); err != nil {
		return 0, err
	}
	took, err := each(callers, len(s.items), func(_, i int) error {
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
func (b *lustreBench) batch(ctx context.Context) (res LustreBatch, err error) {
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
		func(t *lustre.Tier) error { return readOneByOne(ctx, t, s) },
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
func (b *lustreBench) against(s *set, read func(way int) (time.Duration, error)) (res LustreBatch, err error) {
	var rates [2][]float64
	for r := range b.o.Rounds {
		for turn := range rates {
			way := (turn + r) % len(rates)
			took, err := read(way)
			if err != nil {
				return res, err
			}
			rates[way] = append(rates[way], s.rate(took))
		}
		b.progress()
	}
	res = LustreBatch{Bytes: s.size, Count: len(s.items), BatchMBps: round(median(rates[0])), SingleMBps: round(median(rates[1]))}
	res.Speedups = ratios(rates[0], rates[1])
	res.Speedup = round(median(res.Speedups))
	return res, nil
}

// readOneByOne reads a whole set block after block.
func readOneByOne(ctx context.Context, t *lustre.Tier, s *set) error {
	for i, it := range s.items {
		if err := readOne(ctx, t, it.Info.ID, s.room.at(i)); err != nil {
			return err
		}
	}
	return nil
}

func readOne(ctx context.Context, t *lustre.Tier, id block.ID, dst []byte) error {
	p, err := t.Pin(id)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer p.Release()
	return p.ReadInto(ctx, dst)
}
