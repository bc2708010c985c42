package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre"
	"cascadekv/tiers"
)

// limitBlock is the size of the reads that are compared with fio's.
const limitBlock = 2 << 20

// limitFile is both files of the comparison.
type limitFile struct {
	b     *lustreBench
	tier  *lustre.Tier
	ids   []block.ID
	room  cells  // a block for each reader
	fio   string // the program
	plain string // its file
}

// limit compares reads with fio's.
func (b *lustreBench) limit(ctx context.Context) (res LustreLimit, err error) {
	f := &limitFile{b: b}
	n := int(b.o.LimitBytes / limitBlock)
	res = LustreLimit{Bytes: int64(n) * limitBlock, BlockBytes: limitBlock}
	defer func() { err = errors.Join(err, f.close()) }()
	dir := b.folder()
	if err := f.write(ctx, dir, n); err != nil {
		return res, err
	}
	if f.fio, err = exec.LookPath("fio"); err != nil {
		res.Why = "fio is not installed: apt-get install fio"
	} else if err := f.check(ctx); err != nil {
		res.Why = err.Error()
		f.fio = ""
	}
	sequential, random, err := f.rounds(ctx)
	if err != nil {
		return res, err
	}
	res.SequentialMBps, res.SequentialFio = round(median(sequential[0])), round(median(sequential[1]))
	res.RandomMBps, res.RandomFio = round(median(random[0])), round(median(random[1]))
	if f.fio != "" {
		res.SequentialRatios, res.RandomRatios = ratios(sequential[0], sequential[1]), ratios(random[0], random[1])
		seq, rnd := round(median(res.SequentialRatios)), round(median(res.RandomRatios))
		res.SequentialRatio, res.RandomRatio = &seq, &rnd
	}
	return res, nil
}

// rounds measures both sides in turn; the first round warms up and does not
// count.
func (f *limitFile) rounds(ctx context.Context) (sequential, random [2][]float64, err error) {
	for r := range f.b.o.Rounds + 1 {
		for _, mode := range []struct {
			rw    string
			rates *[2][]float64
		}{{"read", &sequential}, {"randread", &random}} {
			for turn := range 2 {
				side, rate := (turn+r)%2, 0.0
				if side == 0 {
					rate, err = f.ours(ctx, mode.rw)
				} else if f.fio != "" {
					rate, err = f.theirs(ctx, mode.rw, f.b.o.LimitBytes/limitBlock*limitBlock)
				}
				if err != nil {
					return sequential, random, err
				}
				if r > 0 {
					mode.rates[side] = append(mode.rates[side], rate)
				}
			}
		}
		if r > 0 {
			f.b.progress()
		}
	}
	return sequential, random, nil
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
		stamp(p, uint64(i))
		info := block.Info{ID: block.Sum(block.Bits128, p), Size: limitBlock, CRC: block.CRC(p)}
		f.ids = append(f.ids, info.ID)
		err = t.Put(ctx, tiers.Item{Info: info, Data: p})
		if err == nil {
			_, err = plain.Write(p)
		}
	}
	err = errors.Join(err, plain.Sync(), plain.Close(), t.Close())
	if err == nil {
		err = dropCache(f.b.home)
	}
	if err == nil {
		f.tier, err = f.b.cold(dir)
	}
	return err
}

// ours reads every block once, in the order of the file or in any, and tells
// the rate.
func (f *limitFile) ours(ctx context.Context, rw string) (float64, error) {
	if err := dropCache(f.b.home); err != nil {
		return 0, err
	}
	order := make([]int, len(f.ids))
	for i := range order {
		order[i] = i
	}
	if rw == "randread" {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	took, err := each(f.b.o.Depth, len(order), func(w, i int) error {
		return readOne(ctx, f.tier, f.ids[order[i]], f.room.at(w))
	})
	return float64(len(order)) * limitBlock / mega / took.Seconds(), err
}

// theirs lets fio read every block of its file once.
func (f *limitFile) theirs(ctx context.Context, rw string, bytes int64) (float64, error) {
	out, err := f.run(ctx, rw, bytes)
	if err != nil {
		return 0, err
	}
	var report struct {
		Jobs []struct {
			Error int
			Read  struct {
				Bytes int64   `json:"io_bytes"`
				Rate  float64 `json:"bw_bytes"`
			}
		}
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return 0, fmt.Errorf("bench: fio's report: %w", err)
	}
	if len(report.Jobs) != 1 || report.Jobs[0].Error != 0 || report.Jobs[0].Read.Bytes != bytes {
		return 0, fmt.Errorf("bench: fio did not read %d bytes: %+v", bytes, report)
	}
	return report.Jobs[0].Read.Rate / mega, nil
}

func (f *limitFile) run(ctx context.Context, rw string, size int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.fio, "--name=limit", "--filename="+f.plain, "--readonly", "--rw="+rw, "--size="+strconv.FormatInt(size, 10),
		"--bs="+strconv.Itoa(limitBlock), "--ioengine=io_uring", "--direct=1", "--iodepth="+strconv.Itoa(f.b.o.Depth),
		"--invalidate=1", "--randrepeat=0", "--output-format=json")
	cmd.Env = append(os.Environ(), "GLIBC_TUNABLES=glibc.malloc.hugetlb=1") // huge pages, as ours: a virtual disk is twice as fast with them
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("bench: fio: %w: %s", err, strings.TrimSpace(said.String()))
	}
	return out, nil
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
