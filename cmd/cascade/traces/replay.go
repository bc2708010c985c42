package traces

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"cascadekv/internal/block"
	"cascadekv/internal/cli"
	"cascadekv/internal/replay"
	"cascadekv/internal/simulate"
	"cascadekv/internal/trace"
	"cascadekv/internal/units"
)

// replayFlags are those of trace replay. What concerns the tiers counts only
// for a store in this process; a live rank has its own.
type replayFlags struct {
	traceFlags
	simulateFlags
	blockBytes units.Bytes
	capacities []string
	shares     []float64 // that capacities stand for
	noLustre   bool
	lustreDir  string
	policies   []string
	workers    int
	speed      float64 // 0: that of the trace, and a live rank is not paced
	ranks      int
	sockets    []string
	html       string
}

func (t *Tool) replayCommand() *cobra.Command {
	f := replayFlags{blockBytes: units.Bytes(replay.DefaultBlockBytes)}
	c := &cobra.Command{
		Use:   "replay --trace FILE",
		Short: "Drive a cache with a trace and verify every byte of every hit, or simulate many without bytes",
		Long: "Drive a cache with a trace and verify every byte of every hit: for each request probe, get what hits,\n" +
			"put what misses. The cache is a store in this process, or with --socket a live rank.\n\n" +
			simulateHelp + "\n\n" +
			"With --json, when bytes are moved, one policy gives a result, several give a list of them. Among its fields:\n" +
			"  hit_ratio_blocks   of all blocks asked for; a hit is served together with all blocks before it\n" +
			"  hit_ratio_tokens   of the prompts' tokens\n" +
			"  dedup_ratio        blocks asked for / distinct blocks\n" +
			"  store_dedup_ratio  bytes referenced / bytes stored in the cache at the end\n" +
			"  tiers              hits, share of all blocks, and bytes served, by tier\n" +
			"  wrong_bytes        of hits; anything but 0 is an error, exit status 1",
		Args: cli.Arity(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if *t.Socket != "" && len(f.sockets) > 0 {
				return cli.Usagef("--socket and --sockets exclude each other")
			}
			if err := f.check(cmd, *t.Socket != "" || len(f.sockets) > 0); err != nil {
				return err
			}
			if f.simulate {
				return t.simulate(cmd.Context(), f)
			}
			return t.replay(cmd.Context(), f)
		},
	}
	f.register(c)
	flags := c.Flags()
	flags.Var(&f.blockBytes, "block-bytes", "bytes that stand for a block")
	flags.StringSliceVar(&f.capacities, "capacity", []string{"1"}, "room for blocks in shm as a share of the trace's distinct blocks (0.1 or 10%); several are simulated")
	flags.BoolVar(&f.noLustre, "no-lustre", false, "shm alone")
	flags.StringVar(&f.lustreDir, "lustre-dir", "", "directory below which the lustre tier is made and removed (default: the temporary directory)")
	flags.StringSliceVar(&f.policies, "policy", []string{"prefix"}, "eviction policies, one run each: "+strings.Join(simulate.Policies(), ", ")+"; or all, simulated")
	flags.IntVar(&f.workers, "workers", 1, "requests in flight; hits are reproducible with 1 only")
	flags.StringSliceVar(&f.sockets, "sockets", nil, "unix sockets of several live ranks of one job; requests go to one after the other, and a rank that dies is passed over")
	flags.IntVar(&f.ranks, "ranks", 1, "ranks in this process that share the capacity; requests go to one after the other")
	flags.StringVar(&f.html, "html", "", "write a report with plots to this file")
	flags.Float64Var(&f.speed, "speed", 0, "divide the trace's times by this; a live rank gets each request at its time then (default: as fast as it answers)")
	f.registerSimulate(flags)
	return c
}

func (f *replayFlags) check(cmd *cobra.Command, live bool) error {
	if err := f.traceFlags.check(); err != nil {
		return err
	}
	if f.blockBytes <= 0 || f.blockBytes > block.MaxSize {
		return cli.Usagef("--block-bytes %s is not between 1B and %s", f.blockBytes, units.Bytes(block.MaxSize))
	}
	if f.workers <= 0 {
		return cli.Usagef("--workers %d is not above 0", f.workers)
	}
	if f.ranks <= 0 || f.ranks > maxReplayRanks {
		return cli.Usagef("--ranks %d is not between 1 and %d", f.ranks, maxReplayRanks)
	}
	if f.speed < 0 || math.IsNaN(f.speed) || math.IsInf(f.speed, 0) || f.speed == 0 && cmd.Flags().Changed("speed") {
		return cli.Usagef("--speed %v is not above 0", f.speed)
	}
	for _, text := range f.capacities {
		share, err := parseShare(text)
		if err != nil {
			return err
		}
		f.shares = append(f.shares, share)
	}
	if len(f.shares) == 0 {
		return cli.Usagef("--capacity is empty: write a share of the trace's blocks, such as 0.1 or 10%%")
	}
	if f.noLustre && f.lustreDir != "" {
		return cli.Usagef("--no-lustre and --lustre-dir exclude each other")
	}
	for _, name := range []string{"capacity", "no-lustre", "lustre-dir", "policy", "ranks"} {
		if live && cmd.Flags().Changed(name) {
			return cli.Usagef("--%s cannot change a live rank: start the rank so, or leave out --socket", name)
		}
	}
	return f.checkSimulate(cmd, live)
}

// parseShare reads "0.1" or "10%".
func parseShare(s string) (float64, error) {
	share, ok := numberOrPercent(s)
	if !ok || share == 0 || share > 100 {
		return 0, cli.Usagef("--capacity %q is not a share of the trace's blocks: write 0.1 or 10%%; 1 has room for all", s)
	}
	return share, nil
}

// numberOrPercent reads a number of 0 or more, or so many hundredths.
func numberOrPercent(s string) (number float64, ok bool) {
	text, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	number, err := strconv.ParseFloat(text, 64)
	if percent {
		number /= 100
	}
	return number, err == nil && !math.IsNaN(number) && number >= 0
}

func (t *Tool) replay(ctx context.Context, f replayFlags) error {
	info, err := t.summarize(&f.traceFlags)
	if err != nil {
		return err
	}
	clock := &replay.Clock{}
	live := *t.Socket != "" || len(f.sockets) > 0
	newTarget, policies, err := t.replayTarget(f, info, clock)
	if err != nil {
		return err
	}
	bar := t.progress(int64(info.Requests*max(1, len(policies))), "replay", false)
	results, err := replay.Run(ctx, replay.Options{
		Trace:       func() (trace.Source, error) { return f.source() },
		NewTarget:   newTarget,
		Policies:    policies,
		Name:        f.file,
		BlockBytes:  int(f.blockBytes),
		BlockTokens: f.blockTokens,
		Requests:    f.limit,
		Workers:     f.workers,
		Clock:       clock,
		Paced:       live && f.speed > 0,
		Progress:    func(replay.Progress) { _ = bar.Add(1) }, // drawing is best effort
	})
	_ = bar.Finish() // likewise
	if len(results) > 0 {
		err = errors.Join(err, t.showReplay(results, f.html))
	}
	return err
}

// source hides the concrete reader, so that a failed open is a nil interface.
func (f *replayFlags) source() (trace.Source, error) {
	r, err := f.open()
	if err != nil {
		return nil, err
	}
	return f.faster(r), nil
}

// faster applies --speed.
func (f *replayFlags) faster(src trace.Source) trace.Source {
	return trace.Faster(src, cmp.Or(f.speed, 1))
}

func (t *Tool) replayTarget(f replayFlags, info trace.Info, clock *replay.Clock) (func(context.Context, string) (replay.Target, error), []string, error) {
	if *t.Socket == "" && len(f.sockets) == 0 {
		return f.inProcess(info, t.ShmDir, clock), f.policies, nil
	}
	loaded, err := t.Config()
	if err != nil {
		return nil, nil, err
	}
	password, err := loaded.Password()
	if err != nil {
		return nil, nil, err
	}
	live := func(network, address string) replay.Target {
		return replay.NewLiveTarget(replay.LiveOptions{
			Network: network, Addr: address, Password: password, BlockBytes: int(f.blockBytes), ServerUIDs: loaded.ServerUIDs,
		})
	}
	network, address := t.Address(&loaded.Config)
	return func(context.Context, string) (replay.Target, error) {
		if len(f.sockets) == 0 {
			return live(network, address), nil
		}
		var ranks []replay.Target
		for _, socket := range f.sockets {
			ranks = append(ranks, live("unix", socket))
		}
		return replay.NewGroupTarget(replay.GroupOptions{Survive: true}, ranks...), nil
	}, nil, nil
}

func (t *Tool) showReplay(results []replay.Result, html string) error {
	var err error
	switch {
	case !*t.JSON:
		err = replay.Table(t.Out, results)
	case len(results) == 1:
		err = cli.PrintJSON(t.Out, results[0])
	default:
		err = cli.PrintJSON(t.Out, results)
	}
	if err != nil {
		return err
	}
	if err := cli.Report(t.Err, html, func(w io.Writer) error { return replay.Report(w, results) }); err != nil {
		return err
	}
	for _, r := range results {
		if r.WrongBytes > 0 {
			return fmt.Errorf("replay: %d wrong bytes with policy %q: a tier returned something else than was stored", r.WrongBytes, r.Policy)
		}
	}
	return nil
}
