package traces

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cascadekv/internal/cli"
	"cascadekv/internal/replay"
	"cascadekv/internal/simulate"
	"cascadekv/internal/units"
)

// allPolicies stands for every policy there is.
const allPolicies = "all"

const simulateHelp = "With several capacities, --policy all or --simulate nothing is stored: one tier is simulated for each policy and capacity,\n" +
	"beside LRU and MIN, the most that any policy could hit. It writes a temporary file (TMPDIR). Any of the flags of the\n" +
	"model (--prefill-rate, --load-rate, --load-latency, --bytes-per-token, --engines) adds modelled times to first token. Among the fields of its JSON:\n" +
	"  capacities    as shares of the trace's distinct blocks\n" +
	"  policies      by name, hit ratios of blocks at each capacity, min's among them\n" +
	"  against_lru   by name: hits_over_lru, gap_closed of the way from LRU to MIN, cache_for_lru_hits as a multiple of each capacity\n" +
	"  ttft          the model, and by name p50, p90 and p99 at each capacity, in seconds, and p90_over_lru"

// Words of --hints.
const (
	hintsNone  = "none"
	hintsGiven = "given"
)

// simulateFlags are those of trace replay without bytes.
type simulateFlags struct {
	simulate      bool
	hints         string
	wrongHints    float64
	prefillRate   float64
	loadRate      units.Bytes
	loadLatency   time.Duration
	bytesPerToken units.Bytes
	engines       int
	modelled      []string // flags of the model that were given
}

// modelFlags are in the order in which showAssumedModel has their values.
var modelFlags = []string{"prefill-rate", "load-rate", "load-latency", "bytes-per-token", "engines"}

func (f *simulateFlags) registerSimulate(flags *pflag.FlagSet) {
	model := simulate.DefaultTTFTModel
	f.loadRate, f.bytesPerToken = units.Bytes(model.Loads[0].BytesPerSecond), units.Bytes(model.BytesPerToken)
	flags.BoolVar(&f.simulate, "simulate", false, "without bytes: one policy at one capacity too")
	flags.StringVar(&f.hints, "hints", hintsNone, "simulated: what policies learn of the trace's hints (session_id, shared_blocks, pause): none, or what is given")
	flags.Float64Var(&f.wrongHints, "wrong-hints", 0, "share of the requests, 0 to 1, that have hints by chance instead, which say nothing")
	flags.Float64Var(&f.prefillRate, "prefill-rate", model.PrefillTokensPerSecond, "of the model: tokens that the engine computes in a second")
	flags.Var(&f.loadRate, "load-rate", "of the model: bytes that the tier loads in a second")
	cli.DurationVar(flags, &f.loadLatency, "load-latency", model.Loads[0].Latency, "of the model: time before a request's load begins")
	flags.Var(&f.bytesPerToken, "bytes-per-token", "of the model: KV cache of a token; the default is LLaMA-2-70B's")
	flags.IntVar(&f.engines, "engines", model.Engines, "of the model: engines for which requests wait; 0: none waits")
}

// checkSimulate finds out whether to simulate, and refuses what then counts for nothing.
func (f *replayFlags) checkSimulate(cmd *cobra.Command, live bool) error {
	all := slices.Contains(f.policies, allPolicies)
	for _, name := range modelFlags {
		if cmd.Flags().Changed(name) {
			f.modelled = append(f.modelled, name)
		}
	}
	if !live && (all || len(f.shares) > 1) {
		f.simulate = true
	}
	switch {
	case f.simulate && live:
		return cli.Usagef("--simulate asks no rank: leave it out, or leave out --socket")
	case !f.simulate && len(f.modelled) > 0:
		return cli.Usagef("--%s is of a model, and this replay measures: add --simulate, or leave it out", f.modelled[0])
	case !f.simulate && slices.Contains(f.policies, simulate.Min):
		return cli.Usagef("--policy %s knows the future and can only be simulated: add --simulate", simulate.Min)
	case f.hints != hintsNone && f.hints != hintsGiven:
		return cli.Usagef("--hints %q is neither %s nor %s", f.hints, hintsNone, hintsGiven)
	case !(f.wrongHints >= 0 && f.wrongHints <= 1):
		return cli.Usagef("--wrong-hints %v is not between 0 and 1", f.wrongHints)
	case f.wrongHints > 0 && f.hints == hintsNone:
		return cli.Usagef("--wrong-hints counts for nothing without --hints %s", hintsGiven)
	case !f.simulate && f.hints != hintsNone:
		return cli.Usagef("--hints %s is of a simulation: add --simulate, or leave it out", f.hints)
	case !f.simulate:
		return nil
	}
	for _, name := range []string{"block-bytes", "no-lustre", "lustre-dir", "workers", "ranks"} {
		if cmd.Flags().Changed(name) {
			return cli.Usagef("--%s counts for nothing in a simulation, which several capacities, --policy all and --simulate ask for: leave it out", name)
		}
	}
	if all {
		f.policies = simulate.Policies()
	}
	for _, name := range f.policies {
		if name != simulate.Min && !slices.Contains(simulate.Policies(), name) {
			return cli.Usagef("--policy %q is none: choose among %s, %s and %s", name, strings.Join(simulate.Policies(), ", "), simulate.Min, allPolicies)
		}
	}
	if err := f.model().Validate(); err != nil {
		return cli.AsUsage(err)
	}
	return nil
}

// model returns the model of the flags.
func (f *simulateFlags) model() simulate.TTFTModel {
	return simulate.TTFTModel{
		PrefillTokensPerSecond: f.prefillRate, BytesPerToken: float64(f.bytesPerToken), Engines: f.engines,
		Loads: []simulate.Load{{BytesPerSecond: float64(f.loadRate), Latency: f.loadLatency}},
	}
}

// simulate replays without bytes.
func (t *Tool) simulate(ctx context.Context, f replayFlags) (err error) {
	in, err := f.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	o := simulate.Options{Requests: f.limit, Policies: f.policies, Capacities: f.shares, BlockTokens: f.blockTokens, Hints: f.hints == hintsGiven, WrongHints: f.wrongHints}
	if len(f.modelled) > 0 {
		model := f.model()
		o.TTFT = &model
	}
	bars := t.simulationBars("simulate")
	o.Trace, o.Progress = watched{f.faster(in), bars.reading}, bars.progress
	r, err := simulate.Run(ctx, o)
	bars.finish()
	if err != nil {
		return err
	}
	r.Trace = f.file
	t.reportAssumed(&f.traceFlags, in.Assumed())
	f.showAssumedModel(t.Err)
	if err := t.show(r, func() error { return replay.SimulationTable(t.Out, r) }); err != nil {
		return err
	}
	return cli.Report(t.Err, f.html, func(w io.Writer) error { return replay.SimulationReport(w, r) })
}

// showAssumedModel prints the defaults that a model was made with.
func (f *simulateFlags) showAssumedModel(w io.Writer) {
	var assumed []string
	for i, value := range []any{f.prefillRate, f.loadRate, f.loadLatency, f.bytesPerToken, f.engines} {
		if name := modelFlags[i]; !slices.Contains(f.modelled, name) {
			assumed = append(assumed, fmt.Sprintf("--%s %v", name, value))
		}
	}
	if len(f.modelled) > 0 && len(assumed) > 0 {
		fmt.Fprintf(w, "time to first token: assumed: %s\n", strings.Join(assumed, ", "))
	}
}
