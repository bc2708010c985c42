package respbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
)

// Errors of this package. Test with errors.Is.
var (
	ErrNoRedis  = errors.New("bench: redis-server is not installed: apt-get install redis-server")
	ErrNotQuiet = errors.New("bench: a server does not come to rest; measure on an idle one")
)

// Options choose a comparison with redis-server. The zero value measures
// values of 2 MiB over a unix socket.
type Options struct {
	Size    int           // bytes of one value; default 2 MiB
	Conns   []int         // connections of each setting; default 1 and 8
	Rounds  int           // of each setting; default 9
	Budget  time.Duration // about how long a phase of the slower side takes; default 500 ms
	Network string        // "unix" (default) or "tcp"

	RedisBinary string // default: redis-server in PATH
	ShmDir      string // where the arena goes; default /dev/shm

	// Verify compares every value of every round with what was stored, not
	// only the last one that each connection got.
	Verify bool

	Progress func(done, total int) // called after each round, by one goroutine; may be nil
}

// Result is the outcome of Run. Ratios are the rank's rate divided by
// redis-server's, the median over the rounds; at 8 connections, and with _1 at
// one. A ratio of a setting that was not asked for is 0.
type Result struct {
	RatioSet  float64 `json:"ratio_set"`
	RatioGet  float64 `json:"ratio_get"`
	RatioSet1 float64 `json:"ratio_set_1"`
	RatioGet1 float64 `json:"ratio_get_1"`

	Size     int         `json:"size"`
	Network  string      `json:"network"`
	Rounds   int         `json:"rounds"`
	Values   int         `json:"values"` // that were overwritten in turn
	Rank     string      `json:"rank_version"`
	Redis    string      `json:"redis_version"`
	Machine  kit.Machine `json:"machine"`
	Settings []Setting   `json:"settings"`
}

// Setting is one operation at one number of connections.
type Setting struct {
	Op             string    `json:"op"` // "set" or "get"
	Conns          int       `json:"conns"`
	Operations     int       `json:"operations"` // in each phase
	Ratio          float64   `json:"ratio"`      // median of Ratios
	RatioOfMedians float64   `json:"ratio_of_medians"`
	Ratios         []float64 `json:"ratios"` // by round
	Rank           Side      `json:"rank"`
	Redis          Side      `json:"redis"`
}

// Side is one server's part of a setting.
type Side struct {
	kit.Figure
	CPUPerGB float64 `json:"cpu_s_per_gb"` // ids that are completed later included
}

// workingSet is how many bytes of values are overwritten and read in turn:
// more than caches hold, so that memory is measured.
const workingSet = 128 << 20

func (o Options) withDefaults() Options {
	if len(o.Conns) == 0 {
		o.Conns = []int{1, 8}
	}
	o.Size = cmp.Or(o.Size, 2<<20)
	o.Rounds = cmp.Or(o.Rounds, 9)
	o.Budget = cmp.Or(o.Budget, 500*time.Millisecond)
	o.Network = cmp.Or(o.Network, "unix")
	o.ShmDir = cmp.Or(o.ShmDir, "/dev/shm")
	return o
}

func (o Options) check() error {
	switch {
	case o.Network != "unix" && o.Network != "tcp":
		return fmt.Errorf("%w: network %q, want unix or tcp", kit.ErrBadOption, o.Network)
	case slices.Min(o.Conns) < 1 || slices.Max(o.Conns) > 1024:
		return fmt.Errorf("%w: connections %v, want 1 to 1024", kit.ErrBadOption, o.Conns)
	case o.Size < kit.StampBytes || o.Size > 512<<20:
		return fmt.Errorf("%w: %w: %d bytes, want %d to 512 MiB", kit.ErrBadOption, kit.ErrTooSmall, o.Size, kit.StampBytes)
	case o.Rounds < 1 || o.Budget < 0:
		return fmt.Errorf("%w: %d rounds of %v", kit.ErrBadOption, o.Rounds, o.Budget)
	}
	return nil
}

// count is the number of values: the working set's worth, two for each
// connection at least, and no more than are quickly made.
func (o Options) count() int {
	return min(max(workingSet/o.Size, 2*slices.Max(o.Conns)), 32<<10)
}

// Run starts a rank and redis-server, compares SET and GET of values over
// their sockets, and stops both. Both are driven by the same client.
// Errors: ErrNoRedis, kit.ErrNoRank, kit.ErrStart, ErrNotQuiet, kit.ErrWrong, kit.ErrBadOption.
func Run(ctx context.Context, o Options) (res Result, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return Result{}, err
	}
	v, err := kit.NewValues(o.count(), o.Size)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	dir, err := os.MkdirTemp("", "cascade-bench-")
	if err != nil {
		return Result{}, fmt.Errorf("bench: %w", err)
	}
	arena := filepath.Join(o.ShmDir, filepath.Base(dir)+".arena")
	defer func() {
		_ = os.Remove(arena) // there is none when the rank did not start
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	// One value more than once over: a SET needs room before it replaces.
	room := 2*int64(o.count())*int64(o.Size) + 2*int64(slices.Max(o.Conns))*int64(o.Size) + 64<<20
	redis, err := startRedis(ctx, o.RedisBinary, o.Network, dir, 2*room)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, redis.close()) }()
	rank, err := startRank(ctx, o.Network, dir, arena, room)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, rank.close()) }()
	return compare(ctx, o, v, rank, redis)
}

// compare measures every setting with two running subjects.
func compare(ctx context.Context, o Options, v *kit.Values, rank, redis *subject) (Result, error) {
	progress := kit.Progress(len(o.Conns)*o.Rounds, o.Progress)
	res := Result{Size: o.Size, Network: o.Network, Rounds: o.Rounds, Values: o.count(),
		Rank: rank.version, Redis: redis.version, Machine: kit.ReadMachine()}
	for _, conns := range o.Conns {
		d := duel{o: o, conns: conns}
		if err := d.run(ctx, v, rank, redis, progress); err != nil {
			return res, err
		}
		set, get := d.setting(opSet), d.setting(opGet)
		res.Settings = append(res.Settings, set, get)
		switch conns {
		case 1:
			res.RatioSet1, res.RatioGet1 = set.Ratio, get.Ratio
		case 8:
			res.RatioSet, res.RatioGet = set.Ratio, get.Ratio
		}
	}
	return res, nil
}
