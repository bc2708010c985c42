package traces

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/internal/trace"
)

// traceFlags say which trace to read and how.
type traceFlags struct {
	file        string
	limit       int
	blockTokens int
	seconds     bool
	form        string
	lengths     bool // the verb has a use for a trace of lengths only
}

func (f *traceFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.file, "trace", "", "trace, .gz too: JSON Lines of Mooncake or aiperf, CSV of Azure or BurstGPT (lengths only)")
	c.Flags().StringVar(&f.form, "form", "", "form of the trace: mooncake, aiperf, azure, burstgpt (default: as its first line shows)")
	c.Flags().IntVar(&f.limit, "limit", 0, "read at most so many requests; 0: all")
	c.Flags().IntVar(&f.blockTokens, "block-tokens", trace.BlockTokens, "tokens of a block in the trace")
	c.Flags().BoolVar(&f.seconds, "seconds", false, "the trace's timestamps are seconds, not milliseconds")
}

func (f *traceFlags) check() error {
	switch {
	case f.file == "":
		return cli.Usagef("name a trace with --trace FILE; cascade trace synth makes one")
	case f.limit < 0:
		return cli.Usagef("--limit %d is negative", f.limit)
	case f.blockTokens <= 0:
		return cli.Usagef("--block-tokens %d is not above 0", f.blockTokens)
	case f.form != "" && !slices.Contains(trace.Forms(), trace.Form(f.form)):
		return cli.Usagef("--form %q is none of %v", f.form, trace.Forms())
	}
	return nil
}

// open opens the trace, and refuses one of lengths only unless the verb has a
// use for it.
func (f *traceFlags) open() (*trace.Reader, error) {
	r, err := trace.Open(f.file, trace.ReaderOptions{BlockTokens: f.blockTokens, Seconds: f.seconds, Form: trace.Form(f.form)})
	if err == nil && r.Form().LengthsOnly() && !f.lengths {
		return nil, errors.Join(fmt.Errorf("%s is in form %s: %w; cascade trace info shows its lengths", f.file, r.Form(), trace.ErrNoReuse), r.Close())
	}
	return r, err
}

// summarize reads the whole trace once, and prints on one line what was assumed
// of it.
func (t *Tool) summarize(f *traceFlags) (info trace.Info, err error) {
	info.Assumed, err = readTrace(t, f, func(src trace.Source) (err error) {
		info, err = trace.Summarize(src, f.blockTokens, f.limit)
		return err
	})
	return info, err
}

// readTrace has a trace read once, under a bar, and returns what was assumed of it, which it prints
// on one line.
func readTrace(t *Tool, f *traceFlags, read func(trace.Source) error) (assumed trace.Assumed, err error) {
	r, err := f.open()
	if err != nil {
		return assumed, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	bar := t.progress(-1, "reading the trace", false) // its length is not known yet
	err = read(watched{r, bar})
	_ = bar.Finish() // drawing is best effort
	if assumed = r.Assumed(); err == nil {
		t.reportAssumed(f, assumed)
	}
	return assumed, err
}

func (t *Tool) reportAssumed(f *traceFlags, assumed trace.Assumed) {
	if assumed != (trace.Assumed{}) {
		fmt.Fprintf(t.Err, "trace %s: assumed: %s\n", f.file, assumed)
	}
}

// watched draws a bar of the requests that are read from a trace.
type watched struct {
	trace.Source
	bar *progressbar.ProgressBar
}

func (w watched) Next(r *trace.Request) error {
	_ = w.bar.Add(1) // likewise
	return w.Source.Next(r)
}

func (t *Tool) traceInfoCommand() *cobra.Command {
	f := traceFlags{lengths: true}
	c := &cobra.Command{
		Use:   "info --trace FILE",
		Short: "Summarise a trace and what an unbounded cache would hit",
		Args:  cli.Arity(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if err := f.check(); err != nil {
				return err
			}
			info, err := t.summarize(&f)
			if err != nil {
				return err
			}
			if *t.JSON {
				return cli.PrintJSON(t.Out, info)
			}
			return cli.PrintTable(t.Out, infoRows(info))
		},
	}
	f.register(c)
	return c
}

func infoRows(info trace.Info) [][]string {
	hits := fmt.Sprintf("%.4f of blocks, %.4f of tokens", info.HitRatioBlocks, info.HitRatioTokens)
	if info.Assumed.LengthsOnly > 0 {
		hits = "not known: the trace has lengths only, no hash ids"
	}
	return [][]string{
		{"requests", strconv.Itoa(info.Requests)},
		{"time", (time.Duration(info.Milliseconds) * time.Millisecond).String()},
		{"blocks", fmt.Sprintf("%d, of which %d distinct", info.Blocks, info.UniqueBlocks)},
		{"tokens", fmt.Sprintf("%d in prompts (longest %d), %d in answers", info.InputTokens, info.LongestInput, info.OutputTokens)},
		{"hits, unbounded", hits},
		{"reparented", fmt.Sprintf("%d blocks with different predecessors (0 in a true prefix trace)", info.Reparented)},
	}
}

// aboveZero are synth's flags that have no use for 0.
var aboveZero = []string{"requests", "system-prompts", "system-tokens", "sessions-per-second", "turns", "user-tokens", "answer-tokens",
	"max-input-tokens", "think-time", "token-time"}

func (t *Tool) synthCommand() *cobra.Command {
	var o trace.SynthOptions
	var output string
	c := &cobra.Command{
		Use:   "synth [-o FILE]",
		Short: "Make a trace of a chat service: the same one for the same flags",
		Args:  cli.Arity(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range aboveZero { // where 0 means the default in the library
				if v := cmd.Flags().Lookup(name).Value.String(); v == "0" || v == "0s" {
					return cli.Usagef("trace synth: --%s must be above 0", name)
				}
			}
			o.Uniform = o.Zipf == 0
			return t.synth(o, output)
		},
	}
	flags := c.Flags()
	flags.StringVarP(&output, "output", "o", "", "file to write, compressed if it ends in .gz (default: standard output)")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of the random numbers")
	flags.IntVar(&o.Requests, "requests", 2000, "number of requests")
	flags.IntVar(&o.SystemPrompts, "system-prompts", 50, "system prompts that sessions share")
	flags.IntVar(&o.SystemTokens, "system-tokens", 4096, "mean length of a system prompt")
	flags.Float64Var(&o.Zipf, "zipf", 1, "the k-th most popular prompt has weight k^-this; 0: all are as popular")
	flags.Float64Var(&o.SessionsPerSecond, "sessions-per-second", 1, "mean rate of new sessions")
	flags.IntVar(&o.Turns, "turns", 4, "mean turns of a session")
	flags.IntVar(&o.UserTokens, "user-tokens", 1024, "mean new text of a turn")
	flags.IntVar(&o.AnswerTokens, "answer-tokens", 350, "mean length of an answer")
	flags.IntVar(&o.MaxInputTokens, "max-input-tokens", 128<<10, "a session ends before its prompt grows longer")
	flags.BoolVar(&o.Hints, "hints", false, "write what an engine may know: session_id, shared_blocks, pause (docs/traces.md)")
	flags.Float64Var(&o.WrongHints, "wrong-hints", 0, "share of the hints that are wrong, such as 0.1; the requests stay the same")
	cli.DurationVar(flags, &o.ThinkTime, "think-time", 30*time.Second, "mean pause before the next turn")
	cli.DurationVar(flags, &o.TokenTime, "token-time", 20*time.Millisecond, "time the engine takes for a token of an answer")
	return c
}

func (t *Tool) synth(o trace.SynthOptions, output string) (err error) {
	source, err := trace.NewSynth(o)
	if errors.Is(err, trace.ErrBadSynth) {
		return cli.AsUsage(err)
	} else if err != nil {
		return err
	}
	return makeTrace(t, source, o.Requests, "synth", output)
}

// makeTrace is writeTrace for a verb that has nothing else to say.
func makeTrace(t *Tool, source trace.Source, n int, what, output string) error {
	written, err := t.writeTrace(source, n, what, output)
	if err == nil && *t.JSON && output != "" {
		err = cli.PrintJSON(t.Out, map[string]any{"file": output, "requests": written})
	}
	return err
}

// writeTrace writes what source has to the file output, or to standard output
// if that is empty, and returns how many requests there were. The bar, named
// what, expects as many as n.
func (t *Tool) writeTrace(source trace.Source, n int, what, output string) (written int, err error) {
	w := trace.NewWriter(t.Out)
	if output != "" {
		if w, err = trace.Create(output); err != nil {
			return 0, err
		}
	}
	defer w.Abort()
	bar := t.progress(int64(n), what, false)
	var req trace.Request
	for {
		err := source.Next(&req)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = w.Write(&req)
		}
		if err != nil {
			return 0, err
		}
		written++
		_ = bar.Add(1) // drawing is best effort
	}
	_ = bar.Finish() // likewise
	return written, w.Close()
}

func (t *Tool) sortCommand() *cobra.Command {
	var f traceFlags
	var output string
	c := &cobra.Command{
		Use:   "sort --trace FILE [-o FILE]",
		Short: "Write a trace of any form with hash ids in Mooncake's form, in order of time",
		Long: "Write a trace of any form with hash ids in Mooncake's form, in order of time. Requests of the same time keep\n" +
			"the order of the file. The whole trace is held in memory.",
		Args: cli.Arity(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if err := f.check(); err != nil {
				return err
			}
			sorted, err := t.readSorted(&f)
			if err != nil {
				return err
			}
			return makeTrace(t, sorted, sorted.Len(), "sort", output)
		},
	}
	f.register(c)
	c.Flags().StringVarP(&output, "output", "o", "", "file to write, compressed if it ends in .gz (default: standard output)")
	return c
}

func (t *Tool) readSorted(f *traceFlags) (sorted *trace.Sorted, err error) {
	r, err := f.open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	sorted, err = trace.Sort(r, f.limit)
	t.reportAssumed(f, r.Assumed())
	return sorted, err
}
