package traces

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cascadekv/cascade/policy"
	"cascadekv/internal/cli"
	"cascadekv/internal/plan"
	"cascadekv/internal/replay"
	"cascadekv/internal/simulate"
	"cascadekv/internal/units"
)

// planFlags are those of trace plan.
type planFlags struct {
	traceFlags
	model         string
	bytesPerToken units.Bytes
	nodes, gpus   int
	gpuMemory     units.Bytes
	gpuPrice      float64
	prefillRate   float64
	engines       int
	policy        string
	shares        []string
	levels        [len(planLevels)]levelFlags
	targetP90     time.Duration
	targetHits    string
	html          string
}

// levelFlags are those of one level.
type levelFlags struct {
	size, rate units.Bytes
	latency    time.Duration
	price      float64
}

// planLevels are the levels, fastest first, with their defaults: those of Perlmutter, most of them as
// the CASCADE paper has them. docs/traces.md, "Planning", says where each comes from.
var planLevels = [...]struct {
	name, size, about, rate string
	latency                 time.Duration
	price                   float64
}{
	{"hbm", "0", "the engine's own cache in a node's GPUs (default: nine tenths of their memory, less the model's weights)", "1555GB", 0, 0},
	{"dram", "128GB", "/dev/shm of a node", "33GB", time.Millisecond, plan.DRAMPrice},
	{"nvme", "0", "local disks of a node", "3GB", time.Millisecond, plan.SSDPrice},
	{"lustre", "20TB", "Lustre for all nodes together", "6.8GB", 10 * time.Millisecond, plan.SSDPrice},
}

func (t *Tool) planCommand() *cobra.Command {
	var f planFlags
	c := &cobra.Command{
		Use:   "plan --trace FILE --model NAME --nodes N",
		Short: "Size the levels of a job for a trace: hits, times, writes, cost, and the cheapest that meets a target",
		Long: "Size the levels of a job for a trace. Each combination of --shares of DRAM, NVMe and Lustre is simulated, without\n" +
			"bytes, as one pool of all nodes; a victim of a level goes to the next. Cost is Tutti's formula (1): GPUs and storage\n" +
			"an hour, over the trace's tokens (prompts and answers) an hour. Exit status 1: none meets the target; what\n" +
			"comes nearest is shown. Models: " + strings.Join(plan.Models(), ", ") + ".\n\n" +
			"Fields of --json, among others:\n" +
			"  configurations   the cheapest first: levels (bytes, hits, written_bytes_per_hour), ttft_seconds, dollars_per_million_tokens\n" +
			"  chosen, met      the index of the cheapest that meets the target, or of what comes nearest\n" +
			"  recompute        all tokens computed\n" +
			"docs/traces.md, \"Planning\", has the model and where the defaults come from.",
		Args: cli.Arity(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, model, err := f.options(cmd.Flags())
			if err != nil {
				return err
			}
			fmt.Fprintf(t.Err, "plan: assumed: %s\n", assumedOf(cmd.Flags(), &o))
			if model != nil && o.Levels[0].Bytes == 0 && !cmd.Flags().Changed("hbm") {
				fmt.Fprintf(t.Err, "plan: the weights of %s, %s, leave no room in a node's GPUs: if an engine takes several nodes, give --engines and --hbm\n",
					model.Name, units.Bytes(model.WeightBytes()).Human())
			}
			return t.plan(cmd.Context(), &f, o, model)
		},
	}
	f.register(c)
	f.registerPlan(c.Flags())
	return c
}

func (f *planFlags) registerPlan(flags *pflag.FlagSet) {
	flags.StringVar(&f.model, "model", "", "model whose KV cache is stored, 16 bits a number")
	flags.Var(&f.bytesPerToken, "bytes-per-token", "KV cache of a token, instead of --model")
	flags.IntVar(&f.nodes, "nodes", 1, "nodes of the job")
	flags.IntVar(&f.gpus, "gpus-per-node", 4, "GPUs of a node")
	sizeVar(flags, &f.gpuMemory, "gpu-memory", "40GB", "memory of a GPU")
	flags.Float64Var(&f.gpuPrice, "gpu-price", plan.GPUPrice, "dollars an hour of a GPU")
	flags.Float64Var(&f.prefillRate, "prefill-rate", simulate.DefaultTTFTModel.PrefillTokensPerSecond, "tokens that an engine computes in a second")
	flags.IntVar(&f.engines, "engines", 0, "engines that share the requests (default: one for each node)")
	flags.StringVar(&f.policy, "policy", policy.Prefix, "eviction policy of all levels but hbm, which is lru's: "+strings.Join(simulate.Policies(), ", "))
	flags.StringSliceVar(&f.shares, "shares", []string{"0", "6.25%", "12.5%", "25%", "50%", "100%"}, "shares of --dram, --nvme and --lustre that are tried")
	for i, l := range planLevels {
		at := &f.levels[i]
		sizeVar(flags, &at.size, l.name, l.size, l.about)
		sizeVar(flags, &at.rate, l.name+"-rate", l.rate, "bytes that a request loads from "+l.name+" in a second")
		cli.DurationVar(flags, &at.latency, l.name+"-latency", l.latency, "time before a request's load from "+l.name+" begins")
		if l.price > 0 {
			flags.Float64Var(&at.price, l.name+"-price", l.price, "dollars an hour of a GB of "+l.name)
			flags.Lookup(l.name + "-price").DefValue = strconv.FormatFloat(l.price, 'f', -1, 64)
		}
	}
	cli.DurationVar(flags, &f.targetP90, "target-p90", 0, "longest time to the first token for nine of ten requests")
	flags.StringVar(&f.targetHits, "target-hits", "", "least share of blocks that hit, such as 0.4 or 40%")
	flags.StringVar(&f.html, "html", "", "write a report with plots to this file")
}

// sizeVar is a flag for a size whose default is shown as it is written here.
func sizeVar(flags *pflag.FlagSet, b *units.Bytes, name, value, usage string) {
	flags.Var(b, name, usage)
	if err := b.Set(value); err != nil {
		panic(err) // a constant of this program
	}
	flags.Lookup(name).DefValue = value
}

// options checks the flags.
func (f *planFlags) options(flags *pflag.FlagSet) (o plan.Options, model *plan.Model, err error) {
	if err := f.check(); err != nil {
		return o, nil, err
	}
	for name, n := range map[string]int{"nodes": f.nodes, "gpus-per-node": f.gpus} {
		if n <= 0 || n > 1<<20 {
			return o, nil, cli.Usagef("--%s %d is not between 1 and %d", name, n, 1<<20)
		}
	}
	if f.targetP90 == 0 && flags.Changed("target-p90") {
		return o, nil, cli.Usagef("--target-p90 must be above 0")
	}
	o = plan.Options{
		Requests: f.limit, BlockTokens: f.blockTokens, BytesPerToken: int64(f.bytesPerToken), PrefillTokensPerSecond: f.prefillRate,
		Engines: f.engines, GPUs: f.nodes * f.gpus, GPUPrice: f.gpuPrice, Target: plan.Target{P90: f.targetP90},
	}
	if !flags.Changed("engines") {
		o.Engines = f.nodes
	}
	if model, err = f.modelOf(); err != nil {
		return o, nil, err
	}
	if model != nil {
		o.BytesPerToken = model.BytesPerToken()
	}
	if f.targetHits != "" {
		if o.Target.Hits, err = planShare("target-hits", f.targetHits); err != nil {
			return o, nil, err
		}
	}
	o.Levels, err = f.planLevels(flags, model)
	return o, model, err
}

// modelOf returns the model that is named, nil where the bytes of a token are given.
func (f *planFlags) modelOf() (*plan.Model, error) {
	switch {
	case (f.model == "") == (f.bytesPerToken == 0):
		return nil, cli.Usagef("name either a --model (%s) or its --bytes-per-token: 2 x layers x KV heads x head size x bytes of a number", strings.Join(plan.Models(), ", "))
	case f.model == "":
		return nil, nil
	}
	m, err := plan.ModelNamed(f.model)
	if err != nil {
		return nil, cli.Usagef("--model: %v (--bytes-per-token)", err)
	}
	return &m, nil
}

func (f *planFlags) planLevels(flags *pflag.FlagSet, model *plan.Model) (levels []plan.Level, err error) {
	var shares []float64
	for _, text := range f.shares {
		share, err := planShare("shares", text)
		if err != nil {
			return nil, err
		}
		shares = append(shares, share)
	}
	if !flags.Changed("hbm") && model != nil {
		f.levels[0].size = max(0, units.Bytes(f.gpus)*f.gpuMemory*9/10-units.Bytes(model.WeightBytes()))
	}
	for i, l := range planLevels {
		at := f.levels[i]
		level := plan.Level{Name: l.name, Bytes: int64(at.size), BytesPerSecond: float64(at.rate), Latency: at.latency, DollarsPerGBHour: at.price, Policy: f.policy, Shares: shares}
		if at.size < 0 || at.size > units.PiB {
			return nil, cli.Usagef("--%s %s is not between 0 and %s", l.name, at.size, units.PiB)
		}
		if l.name != "lustre" {
			level.Bytes *= int64(f.nodes)
		}
		if i == 0 {
			level.Policy, level.Shares = policy.LRU, []float64{1}
		}
		levels = append(levels, level)
	}
	return levels, nil
}

// planShare reads "0.1", "10%" or "0".
func planShare(flag, text string) (float64, error) {
	share, ok := numberOrPercent(text)
	if !ok || share > 1 {
		return 0, cli.Usagef("--%s %q is not a share of 0 to 1: write 0.1 or 10%%", flag, text)
	}
	return share, nil
}

// assumedOf lists the flags of the machine and the prices that were not given.
func assumedOf(flags *pflag.FlagSet, o *plan.Options) string {
	assumed := []string{fmt.Sprintf("hbm %s for all nodes", units.Bytes(o.Levels[0].Bytes).Human()), fmt.Sprintf("%d engines", o.Engines)}
	flags.VisitAll(func(f *pflag.Flag) {
		name, _, _ := strings.Cut(f.Name, "-")
		switch name {
		case "dram", "nvme", "lustre", "gpu", "prefill":
			if !f.Changed {
				assumed = append(assumed, "--"+f.Name+" "+f.DefValue)
			}
		}
	})
	return strings.Join(assumed, ", ")
}

// errTarget: the plan was made and shown, and is not what was asked for.
var errTarget = errors.New("plan: no configuration meets the target: raise --nodes, --dram, --nvme or --lustre, try finer --shares, or ask for less with --target-p90 and --target-hits")

func (t *Tool) plan(ctx context.Context, f *planFlags, o plan.Options, model *plan.Model) (err error) {
	in, err := f.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	bars := t.simulationBars("plan")
	o.Trace, o.Progress = watched{in, bars.reading}, bars.progress
	r, err := plan.Run(ctx, o)
	bars.finish()
	if errors.Is(err, plan.ErrBadOptions) || errors.Is(err, simulate.ErrBadOptions) {
		return cli.AsUsage(err)
	} else if err != nil {
		return err
	}
	r.Trace, r.Model, r.Nodes = f.file, model, f.nodes
	t.reportAssumed(&f.traceFlags, in.Assumed())
	if err := t.show(r, func() error { return replay.PlanTable(t.Out, &r) }); err != nil {
		return err
	}
	if err := cli.Report(t.Err, f.html, func(w io.Writer) error { return replay.PlanReport(w, &r) }); err != nil {
		return err
	}
	if !r.Met {
		return errTarget
	}
	return nil
}

// simulationBars are a bar while a trace is read, whose length is not known yet, and then one
// of what is simulated.
type simulationBars struct {
	t       *Tool
	what    string
	reading *progressbar.ProgressBar
	drawn   *progressbar.ProgressBar
}

func (t *Tool) simulationBars(what string) *simulationBars {
	return &simulationBars{t: t, what: what, reading: t.progress(-1, "reading the trace", false)}
}

func (b *simulationBars) progress(done, total int) {
	if b.drawn == nil {
		_ = b.reading.Finish() // drawing is best effort
		b.drawn = b.t.progress(int64(total), b.what, false)
	}
	_ = b.drawn.Set(done) // likewise
}

func (b *simulationBars) finish() {
	if b.drawn != nil {
		_ = b.drawn.Finish() // likewise
	}
}
