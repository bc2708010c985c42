package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// RESPOptions choose a comparison with redis-server. The zero value measures
// values of 2 MiB over a unix socket.
type RESPOptions struct {
	Size    int           // bytes of one value; default 2 MiB
	Conns   []int         // connections of each setting; default 1 and 8
	Rounds  int           // of each setting; default 9
	Budget  time.Duration // about how long a phase of the slower side takes; default 500 ms
	Network string        // "unix" (default) or "tcp"

	RankBinary  string // default: cascaded beside this program, or in PATH
	RedisBinary string // default: redis-server in PATH
	ShmDir      string // where the arena goes; default /dev/shm

	// Verify compares every value of every round with what was stored, not
	// only the last one that each connection got.
	Verify bool

	Progress func(done, total int) // called after each round, by one goroutine; may be nil
}

// RESPResult is the outcome of RESP. Ratios are the rank's rate divided by
// redis-server's, the median over the rounds; at 8 connections, and with _1 at
// one. A ratio of a setting that was not asked for is 0.
type RESPResult struct {
	RatioSet  float64 `json:"ratio_set"`
	RatioGet  float64 `json:"ratio_get"`
	RatioSet1 float64 `json:"ratio_set_1"`
	RatioGet1 float64 `json:"ratio_get_1"`

	Size     int           `json:"size"`
	Network  string        `json:"network"`
	Rounds   int           `json:"rounds"`
	Values   int           `json:"values"` // that were overwritten in turn
	Rank     string        `json:"rank_version"`
	Redis    string        `json:"redis_version"`
	Machine  Machine       `json:"machine"`
	Settings []RESPSetting `json:"settings"`
}

// RESPSetting is one operation at one number of connections.
type RESPSetting struct {
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
	Figure
	CPUPerGB float64 `json:"cpu_s_per_gb"` // ids that are completed later included
}

// workingSet is how many bytes of values are overwritten and read in turn:
// more than caches hold, so that memory is measured.
const workingSet = 128 << 20

func (o RESPOptions) withDefaults() RESPOptions {
	if o.Size == 0 {
		o.Size = 2 << 20
	}
	if len(o.Conns) == 0 {
		o.Conns = []int{1, 8}
	}
	if o.Rounds == 0 {
		o.Rounds = 9
	}
	if o.Budget == 0 {
		o.Budget = 500 * time.Millisecond
	}
	if o.Network == "" {
		o.Network = "unix"
	}
	if o.ShmDir == "" {
		o.ShmDir = "/dev/shm"
	}
	return o
}

func (o RESPOptions) check() error {
	switch {
	case o.Network != "unix" && o.Network != "tcp":
		return fmt.Errorf("%w: network %q, want unix or tcp", ErrBadOption, o.Network)
	case slices.Min(o.Conns) < 1 || slices.Max(o.Conns) > 1024:
		return fmt.Errorf("%w: connections %v, want 1 to 1024", ErrBadOption, o.Conns)
	case o.Size < stampBytes || o.Size > 512<<20:
		return fmt.Errorf("%w: %w: %d bytes, want %d to 512 MiB", ErrBadOption, ErrTooSmall, o.Size, stampBytes)
	case o.Rounds < 1 || o.Budget < 0:
		return fmt.Errorf("%w: %d rounds of %v", ErrBadOption, o.Rounds, o.Budget)
	}
	return nil
}

// count is the number of values: the working set's worth, two for each
// connection at least, and no more than are quickly made.
func (o RESPOptions) count() int {
	return min(max(workingSet/o.Size, 2*slices.Max(o.Conns)), 32<<10)
}

// RESP starts a rank and redis-server, compares SET and GET of values over
// their sockets, and stops both. Both are driven by the same client.
// Errors: ErrNoRedis, ErrNoRank, ErrStart, ErrNotQuiet, ErrWrong, ErrBadOption.
func RESP(ctx context.Context, o RESPOptions) (res RESPResult, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return RESPResult{}, err
	}
	v, err := newValues(o.count(), o.Size)
	if err != nil {
		return RESPResult{}, err
	}
	defer func() { err = errors.Join(err, v.close()) }()
	dir, err := os.MkdirTemp("", "cascade-bench-")
	if err != nil {
		return RESPResult{}, fmt.Errorf("bench: %w", err)
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
		return RESPResult{}, err
	}
	defer func() { err = errors.Join(err, redis.close()) }()
	rank, err := startRank(ctx, o.RankBinary, o.Network, dir, arena, room)
	if err != nil {
		return RESPResult{}, err
	}
	defer func() { err = errors.Join(err, rank.close()) }()
	return compare(ctx, o, v, rank, redis)
}

// compare measures every setting with two running subjects.
func compare(ctx context.Context, o RESPOptions, v *values, rank, redis *subject) (RESPResult, error) {
	res := RESPResult{Size: o.Size, Network: o.Network, Rounds: o.Rounds, Values: o.count(),
		Rank: rank.version, Redis: redis.version, Machine: readMachine()}
	for i, conns := range o.Conns {
		d := duel{o: o, conns: conns, before: i * o.Rounds}
		if err := d.run(ctx, v, rank, redis); err != nil {
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
