package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// ErrKept: KeepLustre finds blocks that are kept already, or ReadKept finds none.
var ErrKept = errors.New("bench: kept blocks")

// keptVersion is that of LustreKept as a file.
const keptVersion = 1

// LustreKept is blocks that KeepLustre wrote, for ReadKept to read once and
// cold. It lies beside them as a file.
type LustreKept struct {
	Version int        `json:"version"`
	Dir     string     `json:"dir"` // of the blocks
	Host    string     `json:"host"`
	Written time.Time  `json:"written"`
	Seed    uint64     `json:"seed"`
	Rounds  int        `json:"rounds"`
	Blocks  []KeptRows `json:"blocks"`
}

// KeptRows is the blocks of one size: as many sets of them as there are rounds.
type KeptRows struct {
	Bytes      int       `json:"bytes"`
	Count      int       `json:"count"`           // blocks in a set
	Aggregated []float64 `json:"aggregated_mbps"` // how fast each set was written
	PerFile    []float64 `json:"per_file_mbps"`
}

// LustreColdResult is the outcome of ReadKept.
type LustreColdResult struct {
	Machine    Machine      `json:"machine"`
	Dir        string       `json:"dir"`
	FileSystem string       `json:"file_system"`
	Direct     bool         `json:"direct"` // as in LustreResult
	Uring      bool         `json:"uring"`
	Depth      int          `json:"depth"`
	Rounds     int          `json:"rounds"`
	WrittenOn  string       `json:"written_on"` // a host
	RestHours  float64      `json:"rest_hours"` // since it was written
	Method     LustreMethod `json:"method"`
	Blocks     []LustreRow  `json:"blocks"`
}

// keptIn is the folder of kept blocks below a directory; keptFile tells of them.
func keptIn(dir string) string    { return filepath.Join(dir, "cascade-bench-kept") }
func keptFile(home string) string { return filepath.Join(home, "kept.json") }

// set makes the set of a round, the same whenever it is called.
func (k *LustreKept) set(row KeptRows, round int) (*set, error) {
	return newSet(row.Count, row.Bytes, k.Seed+uint64(round))
}

// folder is where one form of a round's set lies.
func (k *LustreKept) folder(row KeptRows, round, form int) string {
	return filepath.Join(k.Dir, fmt.Sprintf("%d-%d-%d", row.Bytes, round, form))
}

// KeepLustre writes the blocks of the table and leaves them below o.Dir for
// ReadKept: in segments, in files of their own and in one long file, each set
// to be read once. What lies between here and the disk, such as a file
// server's memory or that of a virtual machine's host, keeps what was just
// written, and no bench can empty it; time can, and another node reads past its
// own. Errors: ErrBadOption, ErrKept, those of the tier and of the file system.
func KeepLustre(ctx context.Context, o LustreOptions) (k *LustreKept, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	k = &LustreKept{Version: keptVersion, Dir: keptIn(o.Dir), Seed: rand.Uint64(), Rounds: o.Rounds}
	if err := os.Mkdir(k.Dir, 0o700); errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%w are there already: %s; read them with --kept, or remove the folder", ErrKept, k.Dir)
	} else if err != nil {
		return nil, fmt.Errorf("bench: keep blocks: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(k.Dir))
		}
	}()
	b := &lustreBench{o: o, home: k.Dir, total: len(lustreSizes) * o.Rounds}
	for _, size := range lustreSizes {
		row := KeptRows{Bytes: size, Count: max(1, int(o.Bytes)/size)}
		for round := range o.Rounds {
			if err := b.keep(ctx, k, &row, round); err != nil {
				return nil, err
			}
			b.progress()
		}
		k.Blocks = append(k.Blocks, row)
	}
	k.Host, _ = os.Hostname() // only told
	k.Written = time.Now().UTC().Truncate(time.Second)
	text, err := json.MarshalIndent(k, "", "  ")
	if err == nil {
		err = writeDurably(keptFile(k.Dir), text)
	}
	if err != nil {
		return nil, fmt.Errorf("bench: keep blocks: %w", err)
	}
	return k, dropCache(k.Dir)
}

// keep writes one set in all forms.
func (b *lustreBench) keep(ctx context.Context, k *LustreKept, row *KeptRows, round int) (err error) {
	s, err := k.set(*row, round)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var rates [3]float64
	for turn := range rates {
		i := (turn + round) % len(rates)
		if rates[i], err = b.forms()[i].write(ctx, k.folder(*row, round, i), s, 1); err != nil {
			return err
		}
	}
	row.Aggregated = append(row.Aggregated, rates[inSegments])
	row.PerFile = append(row.PerFile, rates[inFiles])
	return nil
}

// ReadKept reads what KeepLustre left below o.Dir, each set once in every form,
// and removes it then: a second time it would be in somebody's memory. Sizes and
// rounds are those of the blocks; of o it takes Dir, Depth and Progress. Where it
// fails the blocks stay. Errors: ErrBadOption, ErrKept, ErrWrong, those of the
// tier and of the file system.
func ReadKept(ctx context.Context, o LustreOptions) (res *LustreColdResult, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	k, err := openKept(o.Dir)
	if err != nil {
		return nil, err
	}
	res = &LustreColdResult{
		Machine: readMachine(), Dir: o.Dir, Depth: o.Depth, Rounds: k.Rounds, Method: lustreMethod,
		WrittenOn: k.Host, RestHours: round(time.Since(k.Written).Hours()),
	}
	res.Method.Cold = "each set is read once, rest_hours after it was written; " + lustreMethod.Cold
	if res.FileSystem, err = fileSystem(o.Dir); err != nil {
		return nil, err
	}
	b := &lustreBench{o: o, home: k.Dir, total: len(k.Blocks) * k.Rounds}
	for _, row := range k.Blocks {
		out, err := b.readRow(ctx, k, row)
		if err != nil {
			return nil, err
		}
		res.Blocks = append(res.Blocks, out)
	}
	res.Direct, res.Uring = b.access.Direct, b.access.Uring
	return res, os.RemoveAll(k.Dir)
}

func openKept(dir string) (*LustreKept, error) {
	home := keptIn(dir)
	text, err := os.ReadFile(keptFile(home))
	if err != nil {
		return nil, fmt.Errorf("%w are not there: %w; write some with --keep", ErrKept, err)
	}
	k := &LustreKept{}
	if err := json.Unmarshal(text, k); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrKept, keptFile(home), err)
	}
	if k.Version != keptVersion {
		return nil, fmt.Errorf("%w: %s is of version %d, this program reads %d", ErrKept, keptFile(home), k.Version, keptVersion)
	}
	for _, r := range k.Blocks {
		if r.Bytes < 1 || r.Count < 1 || r.Count > maxSet/r.Bytes || len(r.Aggregated) != k.Rounds || len(r.PerFile) != k.Rounds {
			return nil, fmt.Errorf("%w: %s is damaged: %d blocks of %d bytes in %d rounds; remove the folder", ErrKept, keptFile(home), r.Count, r.Bytes, k.Rounds)
		}
	}
	k.Dir = home // it may have another path on this node
	return k, nil
}

// readRow reads all sets of one size.
func (b *lustreBench) readRow(ctx context.Context, k *LustreKept, row KeptRows) (LustreRow, error) {
	var reads [3][]float64
	for round := range k.Rounds {
		rates, err := b.readSet(ctx, k, row, round)
		if err != nil {
			return LustreRow{}, err
		}
		for i, rate := range rates {
			reads[i] = append(reads[i], rate)
		}
		b.progress()
	}
	return rowOf(row.Bytes, row.Count, [][]float64{row.Aggregated, row.PerFile}, reads[:inOne], reads[inOne]), nil
}

// readSet reads one set in all forms.
func (b *lustreBench) readSet(ctx context.Context, k *LustreKept, row KeptRows, round int) (rates [3]float64, err error) {
	s, err := k.set(row, round)
	if err != nil {
		return rates, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for turn := range rates {
		i := (turn + round) % len(rates)
		callers := 1
		if i == inOne {
			callers = b.o.Depth
		}
		if rates[i], err = b.forms()[i].read(ctx, k.folder(row, round, i), s, callers); err != nil {
			return rates, err
		}
	}
	return rates, nil
}
