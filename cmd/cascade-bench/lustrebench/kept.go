package lustrebench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
)

// ErrKept: Keep finds blocks that are kept already, or ReadKept finds none.
var ErrKept = errors.New("bench: kept blocks")

// keptVersion is that of Kept as a file.
const keptVersion = 1

// Kept is blocks that Keep wrote, for ReadKept to read once and
// cold. It lies beside them as a file.
type Kept struct {
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

// ColdResult is the outcome of ReadKept.
type ColdResult struct {
	Machine    kit.Machine `json:"machine"`
	Dir        string      `json:"dir"`
	FileSystem string      `json:"file_system"`
	Direct     bool        `json:"direct"` // as in Result
	Uring      bool        `json:"uring"`
	Depth      int         `json:"depth"`
	Rounds     int         `json:"rounds"`
	WrittenOn  string      `json:"written_on"` // a host
	RestHours  float64     `json:"rest_hours"` // since it was written
	Method     Method      `json:"method"`
	Blocks     []Row       `json:"blocks"`
}

// keptIn is the folder of kept blocks below a directory; keptFile describes them.
func keptIn(dir string) string    { return filepath.Join(dir, "cascade-bench-kept") }
func keptFile(home string) string { return filepath.Join(home, "kept.json") }

// Keep writes the blocks of the table and leaves them below o.Dir for
// ReadKept: in segments, in files of their own and in one long file, each set
// to be read once. What lies between here and the disk, such as a file
// server's memory or that of a virtual machine's host, keeps what was just
// written, and no bench can empty it; time can, and another node reads past its
// own. Errors: kit.ErrBadOption, ErrKept, those of the tier and of the file system.
func Keep(ctx context.Context, o Options) (k *Kept, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	k = &Kept{Version: keptVersion, Dir: keptIn(o.Dir), Seed: rand.Uint64(), Rounds: o.Rounds}
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
	b := &bench{o: o, home: k.Dir, progress: kit.Progress(len(sizes)*o.Rounds, o.Progress)}
	for _, size := range sizes {
		row := KeptRows{Bytes: size, Count: max(1, int(o.Bytes)/size)}
		for round := range o.Rounds {
			rates, err := b.eachForm(k, row, round, func(f form, _ int, dir string, s *set) (float64, error) {
				return f.write(ctx, dir, s, 1)
			})
			if err != nil {
				return nil, err
			}
			row.Aggregated = append(row.Aggregated, rates[inSegments])
			row.PerFile = append(row.PerFile, rates[inFiles])
			b.progress()
		}
		k.Blocks = append(k.Blocks, row)
	}
	k.Host, _ = os.Hostname() // for information
	k.Written = time.Now().UTC().Truncate(time.Second)
	text, err := json.MarshalIndent(k, "", "  ")
	if err == nil {
		err = writeDurably(keptFile(k.Dir), text)
	}
	if err != nil {
		return nil, fmt.Errorf("bench: keep blocks: %w", err)
	}
	return k, kit.DropCache(k.Dir)
}

// eachForm does something with the set of a round in each form, in turns, and
// returns its rates by form.
func (b *bench) eachForm(k *Kept, row KeptRows, round int, do func(f form, number int, dir string, s *set) (float64, error)) (rates [3]float64, err error) {
	s, err := newSet(row.Count, row.Bytes, k.Seed+uint64(round)) // the same whenever it is made
	if err != nil {
		return rates, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for i := range kit.Order(round, len(rates)) {
		dir := filepath.Join(k.Dir, fmt.Sprintf("%d-%d-%d", row.Bytes, round, i))
		if rates[i], err = do(b.forms()[i], i, dir, s); err != nil {
			return rates, err
		}
	}
	return rates, nil
}

// ReadKept reads what Keep left below o.Dir, each set once in every form,
// and removes it then: a second time it would be in somebody's memory. Sizes and
// rounds are those of the blocks; of o it takes Dir, Depth and Progress. Where it
// fails the blocks stay. Errors: kit.ErrBadOption, ErrKept, kit.ErrWrong, those of the
// tier and of the file system.
func ReadKept(ctx context.Context, o Options) (res *ColdResult, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	k, err := openKept(o.Dir)
	if err != nil {
		return nil, err
	}
	res = &ColdResult{
		Machine: kit.ReadMachine(), Dir: o.Dir, Depth: o.Depth, Rounds: k.Rounds, Method: method,
		WrittenOn: k.Host, RestHours: kit.Round(time.Since(k.Written).Hours()),
	}
	res.Method.Cold = "each set is read once, rest_hours after it was written; " + method.Cold
	if res.FileSystem, err = fileSystem(o.Dir); err != nil {
		return nil, err
	}
	b := &bench{o: o, home: k.Dir, progress: kit.Progress(len(k.Blocks)*k.Rounds, o.Progress)}
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

func openKept(dir string) (*Kept, error) {
	home := keptIn(dir)
	text, err := os.ReadFile(keptFile(home))
	if err != nil {
		return nil, fmt.Errorf("%w are not there: %w; write some with --keep", ErrKept, err)
	}
	k := &Kept{}
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
func (b *bench) readRow(ctx context.Context, k *Kept, row KeptRows) (Row, error) {
	var reads [3][]float64
	for round := range k.Rounds {
		rates, err := b.eachForm(k, row, round, func(f form, number int, dir string, s *set) (float64, error) {
			callers := 1
			if number == inOne {
				callers = b.o.Depth
			}
			return f.read(ctx, dir, s, callers)
		})
		if err != nil {
			return Row{}, err
		}
		for i, rate := range rates {
			reads[i] = append(reads[i], rate)
		}
		b.progress()
	}
	return rowOf(row.Bytes, row.Count, [][]float64{row.Aggregated, row.PerFile}, reads[:inOne], reads[inOne]), nil
}
