package lustrebench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/block"
	"cascadekv/lustre"
	"cascadekv/tiers"
)

// limitBlock is the size of the reads that are compared with fio's.
const limitBlock = 2 << 20

// limitFile is both files of the comparison.
type limitFile struct {
	b     *bench
	tier  *lustre.Tier
	ids   []block.ID
	room  cells  // a block for each reader
	fio   bool   // whether it can be compared with
	plain string // its file
}

// limit compares reads with fio's.
func (b *bench) limit(ctx context.Context) (res Limit, err error) {
	f := &limitFile{b: b}
	n := int(b.o.LimitBytes / limitBlock)
	res = Limit{Bytes: int64(n) * limitBlock, BlockBytes: limitBlock}
	defer func() { err = errors.Join(err, f.close()) }()
	dir := b.folder()
	if err := f.write(ctx, dir, n); err != nil {
		return res, err
	}
	if err := f.check(ctx); err != nil {
		res.Why = err.Error()
	} else {
		f.fio = true
	}
	rates, err := kit.Turns(b.o.Rounds+1, 4, func(_, way int) (float64, error) {
		mode := []string{"read", "randread"}[way/2]
		switch {
		case way%2 == 0:
			return f.ours(ctx, mode)
		case f.fio:
			return f.theirs(ctx, mode, res.Bytes)
		}
		return 0, nil
	}, kit.After(1, b.progress))
	if err != nil {
		return res, err
	}
	for i := range rates {
		rates[i] = rates[i][1:] // the first round warms up
	}
	res.SequentialMBps, res.SequentialFio = kit.Median(rates[0]), kit.Median(rates[1])
	res.RandomMBps, res.RandomFio = kit.Median(rates[2]), kit.Median(rates[3])
	if f.fio {
		var sequential, random float64
		res.SequentialRatios, sequential = kit.Ratios(rates[0], rates[1])
		res.RandomRatios, random = kit.Ratios(rates[2], rates[3])
		res.SequentialRatio, res.RandomRatio = &sequential, &random
	}
	return res, nil
}

// write makes the segment and the plain file, of the same bytes, and opens the
// segment as the next job would.
func (f *limitFile) write(ctx context.Context, dir string, n int) (err error) {
	s, err := newSet(min(n, 32), limitBlock, rand.Uint64())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := f.room.open(f.b.o.Depth, limitBlock); err != nil {
		return err
	}
	t, err := lustre.Open(lustre.Options{Dir: dir, SegmentBytes: int64(n+1)*limitBlock*2 + 1<<30})
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	f.plain = filepath.Join(f.b.home, "fio.bin")
	plain, err := os.OpenFile(f.plain, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Join(fmt.Errorf("bench: %w", err), t.Close())
	}
	for i := 0; i < n && err == nil; i++ {
		p := s.from.at(i % len(s.items))
		kit.Stamp(p, uint64(i))
		info := block.Info{ID: block.Sum(block.Bits128, p), Size: limitBlock, CRC: block.CRC(p)}
		f.ids = append(f.ids, info.ID)
		err = t.Put(ctx, tiers.Item{Info: info, Data: p})
		if err == nil {
			_, err = plain.Write(p)
		}
	}
	err = errors.Join(err, plain.Sync(), plain.Close(), t.Close())
	if err == nil {
		err = kit.DropCache(f.b.home)
	}
	if err == nil {
		f.tier, err = f.b.cold(dir)
	}
	return err
}

// ours reads every block once, in the order of the file or in any, and returns
// the rate.
func (f *limitFile) ours(ctx context.Context, rw string) (float64, error) {
	if err := kit.DropCache(f.b.home); err != nil {
		return 0, err
	}
	ids := f.ids
	if rw == "randread" {
		ids = slices.Clone(ids)
		rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	}
	took, err := kit.Parallel(f.b.o.Depth, len(ids), func(w, i int) error {
		return readOne(ctx, f.tier, ids[i], f.room.at(w))
	})
	return float64(len(ids)) * limitBlock / kit.Mega / took.Seconds(), err
}

// theirs lets fio read every block of its file once.
func (f *limitFile) theirs(ctx context.Context, rw string, bytes int64) (float64, error) {
	rate, err := kit.FioRead(ctx, bytes, "--filename="+f.plain, "--rw="+rw, "--size="+strconv.FormatInt(bytes, 10),
		"--bs="+strconv.Itoa(limitBlock), "--iodepth="+strconv.Itoa(f.b.o.Depth), "--invalidate=1")
	return rate / kit.Mega, err
}

// check finds out whether fio can do what is asked of it here.
func (f *limitFile) check(ctx context.Context) error {
	_, err := f.theirs(ctx, "read", limitBlock)
	return err
}

func (f *limitFile) close() (err error) {
	if f.tier != nil {
		err = f.tier.Close()
	}
	return errors.Join(err, f.room.close())
}
