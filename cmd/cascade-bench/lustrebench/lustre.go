package lustrebench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/vfs"
)

// Options choose what Run measures. The zero value of all but Dir is
// useful.
type Options struct {
	Dir        string // on the file system to measure; what is made in it is removed again
	Rounds     int    // of each measurement; default 5
	Bytes      int64  // of blocks in one phase of the table; default 256 MiB
	LimitBytes int64  // of the file that is read against fio; default 512 MiB
	Depth      int    // reads and writes under way on every side; default 16

	Progress func(done, total int) // called after each round, by one goroutine; may be nil
}

// Result is the outcome of Run.
type Result struct {
	Machine    kit.Machine `json:"machine"`
	Dir        string      `json:"dir"`
	FileSystem string      `json:"file_system"` // its name, or its number
	Direct     bool        `json:"direct"`      // the aggregated side goes past the page cache
	Uring      bool        `json:"uring"`       // its batches go through io_uring
	Depth      int         `json:"depth"`
	Rounds     int         `json:"rounds"`
	Method     Method      `json:"method"`
	Blocks     []Blocks    `json:"blocks"`
	Batch      Batch       `json:"batch"`
	Store      Batch       `json:"store"`
	Limit      Limit       `json:"limit"`
}

// Method describes what each side does.
type Method struct {
	Callers         string `json:"callers"`
	Memory          string `json:"memory"`
	AggregatedWrite string `json:"aggregated_write"`
	PerFileWrite    string `json:"per_file_write"`
	AggregatedRead  string `json:"aggregated_read"`
	PerFileRead     string `json:"per_file_read"`
	ReadBound       string `json:"read_bound"`
	Cold            string `json:"cold"`
	Store           string `json:"store"`
	Limit           string `json:"limit"`
}

var method = Method{
	Callers:         "one caller on each side: it puts batch after batch and reads with one batch, or it writes and reads file after file, as file back ends of LMCache and SGLang do; under parallel the same with as many callers as depth, which share the blocks",
	Memory:          "both sides write from and read into the same memory, mapped before and in huge pages as a rank's arena is, each block in the room that an arena gives it",
	AggregatedWrite: "Put of 4 MiB at a time into a segment: one write, then an fsync that puts at the same time share; durable when it returns; ids and CRCs are ready before",
	PerFileWrite:    "each block in a file of its own: create, write, fsync, close; at the end one fsync of the directory",
	AggregatedRead:  "ReadBatch of all blocks, each verified by CRC32C",
	PerFileRead:     "open, read, close of each file, nothing verified",
	ReadBound:       "one long file of the same bytes, read past the page cache into the same memory with as many reads under way as depth, nothing verified; what it gets over what files of their own get",
	Cold:            "every file is dropped from the page cache before it is read (posix_fadvise DONTNEED after the fsync), and the file system has written everything (syncfs), what became of removed files too; inodes and directory entries stay cached, which favours one file per block",
	Store:           "GetBatch of a chain of blocks that are in segments only, through a store with an empty memory tier, against Get of one after the other; all bytes checked",
	Limit:           "2 MiB reads of one segment by single gets, as many at once as fio's iodepth, against fio with io_uring and O_DIRECT on a file of the same size in the same directory, in turns; both into huge pages",
}

// Blocks is one row of the table: one size of block.
type Blocks struct {
	Row
	Parallel Pair `json:"parallel"` // with as many callers as Depth
}

// Row is one size of block, moved by one caller on each side.
type Row struct {
	Bytes int `json:"bytes"`
	Count int `json:"count"` // blocks in a phase
	Pair

	// LongFileMBps is how fast one long file is read into the same memory, with as
	// many reads under way as Depth. ReadBound is what SpeedupRead would be at that
	// rate: more than that, no layout of files can show here.
	LongFileMBps float64 `json:"long_file_read_mbps"`
	ReadBound    float64 `json:"read_bound"`
}

// Pair is segments and one file per block.
type Pair struct {
	Aggregated   Side      `json:"aggregated"`
	PerFile      Side      `json:"per_file"`
	SpeedupWrite float64   `json:"speedup_write"` // median over the rounds
	SpeedupRead  float64   `json:"speedup_read"`
	WriteRatios  []float64 `json:"write_ratios"` // by round
	ReadRatios   []float64 `json:"read_ratios"`
}

// Side is how fast one side wrote and read, in MB (10⁶ bytes of blocks) a
// second: medians.
type Side struct {
	WriteMBps float64 `json:"write_mbps"`
	ReadMBps  float64 `json:"read_mbps"`
}

// Batch compares one batch of adjacent small blocks with single reads of
// them, one after the other: ReadBatch of the tier, GetBatch of a store.
type Batch struct {
	Bytes      int       `json:"bytes"`
	Count      int       `json:"count"`
	BatchMBps  float64   `json:"batch_mbps"`
	SingleMBps float64   `json:"single_mbps"`
	Speedup    float64   `json:"speedup"`
	Speedups   []float64 `json:"speedups"`
}

// Limit compares reads with what fio gets from the disk. The ratios are
// null where fio does not work; Why is the reason.
type Limit struct {
	Bytes            int64     `json:"bytes"`
	BlockBytes       int       `json:"block_bytes"`
	SequentialRatio  *float64  `json:"sequential_ratio"`
	RandomRatio      *float64  `json:"random_ratio"`
	SequentialMBps   float64   `json:"sequential_mbps"`
	SequentialFio    float64   `json:"sequential_fio_mbps"`
	RandomMBps       float64   `json:"random_mbps"`
	RandomFio        float64   `json:"random_fio_mbps"`
	SequentialRatios []float64 `json:"sequential_ratios"`
	RandomRatios     []float64 `json:"random_ratios"`
	Why              string    `json:"why,omitempty"`
}

// maxSet is the most bytes of blocks in one phase: they are in memory twice.
const maxSet = 8 << 30

// sizes are those of CASCADE Table I.
var sizes = []int{42 << 10, 256 << 10, 1 << 20}

func (o Options) withDefaults() Options {
	o.Rounds = cmp.Or(o.Rounds, 5)
	o.Bytes = cmp.Or(o.Bytes, 256<<20) // a fast disk reads less in no time: starts and ends would be measured
	o.LimitBytes = cmp.Or(o.LimitBytes, 512<<20)
	o.Depth = cmp.Or(o.Depth, 16)
	return o
}

func (o Options) check() error {
	if o.Dir == "" || o.Rounds < 1 || o.Bytes < 1<<20 || o.Bytes > maxSet || o.LimitBytes < limitBlock || o.LimitBytes > 1<<40 || o.Depth < 1 || o.Depth > 1024 {
		return fmt.Errorf("%w: directory %q, %d rounds of %d bytes, limit of %d bytes, depth %d", kit.ErrBadOption, o.Dir, o.Rounds, o.Bytes, o.LimitBytes, o.Depth)
	}
	return nil
}

// Run measures segments against one file per block in the form of CASCADE
// Table I, batches against single reads, and reads against fio. It works on any
// file system. Errors: kit.ErrBadOption, kit.ErrWrong, those of the tier and of the
// file system.
func Run(ctx context.Context, o Options) (res *Result, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	res = &Result{Machine: kit.ReadMachine(), Dir: o.Dir, Depth: o.Depth, Rounds: o.Rounds, Method: method}
	if res.FileSystem, err = fileSystem(o.Dir); err != nil {
		return nil, err
	}
	home, err := os.MkdirTemp(o.Dir, "cascade-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
	b := &bench{o: o, home: home, progress: kit.Progress((len(sizes)+3)*o.Rounds, o.Progress)}
	for _, size := range sizes {
		row, err := b.row(ctx, size)
		if err != nil {
			return res, err
		}
		res.Blocks = append(res.Blocks, row)
	}
	if res.Batch, err = b.batch(ctx); err != nil {
		return res, err
	}
	if res.Store, err = b.chain(ctx); err != nil {
		return res, err
	}
	res.Limit, err = b.limit(ctx)
	res.Direct, res.Uring = b.access.Direct, b.access.Uring
	return res, err
}

// fileSystem names the file system of a directory.
func fileSystem(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", fmt.Errorf("bench: the directory to measure in, which must exist: %s: %w", dir, err)
	}
	if name := vfs.TypeName(uint32(st.Type)); name != "" {
		return strings.ToLower(name), nil
	}
	return fmt.Sprintf("%#x", st.Type), nil
}
