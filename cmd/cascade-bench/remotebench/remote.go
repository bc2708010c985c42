package remotebench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
)

// Options choose what is read. The zero value of every field is useful.
type Options struct {
	Blocks int // of a round; default 40,000
	Batch  int // keys of one MGET; default 64
	Size   int // bytes of a block; default 4 KiB
	Rounds int // of new blocks each, of which the median counts; default 5

	Progress func(done, total int) // may be nil
}

// Result is the outcome of Run. Times are microseconds of processor time for each block.
type Result struct {
	Blocks  int         `json:"blocks"`
	Batch   int         `json:"batch"`
	Size    int         `json:"size"`
	Machine kit.Machine `json:"machine"`

	Once    Cost `json:"once"`
	Repeats Cost `json:"repeats"`
}

// Cost is what a block costs, by medians of the rounds.
type Cost struct {
	Both   float64   `json:"both_us"`
	Asker  float64   `json:"asker_us"` // the rank that the client asks
	Owner  float64   `json:"owner_us"` // the rank that has the blocks
	Rounds []float64 `json:"rounds_us"`
}

// repeats is how many reads follow on the first.
const repeats = 2

// Run measures. It compares all bytes that come. Errors: kit.ErrBadOption, kit.ErrStart,
// kit.ErrNoRank, kit.ErrWrong, ErrMissing, ctx's.
func Run(ctx context.Context, o Options) (res Result, err error) {
	o.Blocks, o.Batch = cmp.Or(o.Blocks, 40_000), cmp.Or(o.Batch, 64)
	o.Size, o.Rounds = cmp.Or(o.Size, 4<<10), cmp.Or(o.Rounds, 5)
	if o.Blocks < 1 || o.Batch < 1 || o.Batch > maxBatch || o.Size < kit.StampBytes || o.Rounds < 1 {
		return res, fmt.Errorf("%w: %d blocks of %d bytes by %d, %d rounds", kit.ErrBadOption, o.Blocks, o.Size, o.Batch, o.Rounds)
	}
	dir, err := os.MkdirTemp("", "cascade-remote-")
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{o: o}
	if b.values, err = kit.NewValues(o.Batch, o.Size); err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, b.values.Close()) }()
	if b.owner, err = start(ctx, dir, 0, 3*int64(o.Blocks)*int64(o.Size), ""); err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, b.owner.close()) }()
	if b.asker, err = start(ctx, dir, 1, 3*int64(o.Blocks)*int64(o.Size), b.owner.gossip); err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, b.asker.close()) }()
	res = Result{Blocks: o.Blocks, Batch: o.Batch, Size: o.Size, Machine: kit.ReadMachine()}
	progress := kit.Progress(o.Rounds, o.Progress)
	var once, more samples
	for range o.Rounds {
		if err := b.round(ctx, &once, &more); err != nil {
			return res, err
		}
		progress()
	}
	res.Once, res.Repeats = once.cost(), more.cost()
	return res, nil
}

// bench is what the rounds share.
type bench struct {
	o            Options
	values       *kit.Values // of one batch
	owner, asker *rank
	first        uint64 // stamp before that of the round's first block
}

// ErrMissing means that blocks which one rank has do not come to the other.
var ErrMissing = errors.New("bench: blocks of another rank do not come")

// round puts new blocks and reads them all, once and repeatedly.
func (b *bench) round(ctx context.Context, once, more *samples) error {
	b.first = b.values.Stamps(b.o.Blocks)
	if err := b.each(ctx, b.put); err != nil {
		return err
	}
	if err := b.known(ctx); err != nil {
		return err
	}
	if err := b.measured(ctx, once, 1); err != nil {
		return err
	}
	if err := b.measured(ctx, more, repeats); err != nil {
		return err
	}
	_, err := b.owner.client.Do("FLUSHDB")
	return err
}

// each calls fn for all batches of the round, each by its first block and their number.
func (b *bench) each(ctx context.Context, fn func(at, n int) error) error {
	for at := 0; at < b.o.Blocks; at += b.o.Batch {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(at, min(b.o.Batch, b.o.Blocks-at)); err != nil {
			return err
		}
	}
	return nil
}

// key is that of one of the round's blocks: as long as a hash, as engines have.
func (b *bench) key(i int) string { return fmt.Sprintf("%064d", b.first+uint64(i)) }

func (b *bench) put(at, n int) error {
	c := b.owner.client
	for j := range n {
		kit.Stamp(b.values.At(j), b.first+uint64(at+j))
		c.SendValue(2, b.values.At(j), "CASCADE.PUT", b.key(at+j))
	}
	if err := c.Flush(); err != nil {
		return err
	}
	for range n {
		if _, err := c.Receive(); err != nil {
			return err
		}
	}
	return nil
}

// maxBatch is how many keys one message asks a home for.
const maxBatch = 128

const (
	knownWait  = 30 * time.Second
	knownEvery = 20 * time.Millisecond // longer than a rank believes that nobody has a block
)

// known waits until the rank that is to be asked finds all blocks.
func (b *bench) known(ctx context.Context) error {
	return b.each(ctx, func(at, n int) error {
		words := append(make([]string, 0, 1+n), "EXISTS")
		for j := range n {
			words = append(words, b.key(at+j))
		}
		err := kit.Until(ctx, knownEvery, knownWait, func() (bool, error) {
			r, err := b.asker.client.Do(words...)
			return int(r.Int) == n, err
		})
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return fmt.Errorf("%w: some of %d are unknown after %v", ErrMissing, n, knownWait)
		}
		return err
	})
}

// read gets a batch from the rank that does not have it.
func (b *bench) read(at, n int) error {
	words := append(make([]string, 0, 1+n), "MGET")
	for j := range n {
		words = append(words, b.key(at+j))
	}
	r, err := b.asker.client.Do(words...)
	if err != nil {
		return err
	}
	if len(r.Elems) != n {
		return fmt.Errorf("%w: %d answers to %d keys", kit.ErrWrong, len(r.Elems), n)
	}
	for j, e := range r.Elems {
		if e.Null() {
			return fmt.Errorf("%w: block %d", ErrMissing, at+j)
		}
		if err := b.values.Check(j, b.first+uint64(at+j), e.Str); err != nil {
			return err
		}
	}
	return nil
}

// measured reads all blocks so many times, and adds what that costs.
func (b *bench) measured(ctx context.Context, s *samples, times int) error {
	if err := b.quiet(ctx); err != nil {
		return err
	}
	asker, owner, err := b.used()
	if err != nil {
		return err
	}
	for range times {
		if err := b.each(ctx, b.read); err != nil {
			return err
		}
	}
	asked, owned, err := b.used()
	if err != nil {
		return err
	}
	blocks := float64(times * b.o.Blocks)
	s.asker = append(s.asker, micros(asked-asker)/blocks)
	s.owner = append(s.owner, micros(owned-owner)/blocks)
	return nil
}

// used is the processor time of both ranks.
func (b *bench) used() (asker, owner time.Duration, err error) {
	asker, aerr := b.asker.CPU()
	owner, oerr := b.owner.CPU()
	return asker, owner, errors.Join(aerr, oerr)
}

const (
	quietEvery = 100 * time.Millisecond
	quietWait  = 30 * time.Second
)

// quiet waits until neither rank has anything to do: what follows on puts and reads
// belongs to these.
func (b *bench) quiet(ctx context.Context) error {
	var before time.Duration
	return kit.Until(ctx, quietEvery, quietWait, func() (bool, error) {
		asker, owner, err := b.used()
		still := asker+owner-before <= kit.Tick
		before = asker + owner
		return still, err
	})
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// samples are figures of rounds.
type samples struct{ asker, owner []float64 }

func (s *samples) cost() Cost {
	both := make([]float64, len(s.asker))
	for i := range both {
		both[i] = kit.Round(s.asker[i] + s.owner[i])
	}
	return Cost{Both: kit.Median(both), Asker: kit.Median(s.asker), Owner: kit.Median(s.owner), Rounds: both}
}
