package traces

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/internal/replay"
	"cascadekv/internal/trace"
	"cascadekv/internal/trace/stats"
)

func (t *Tool) statsCommand() *cobra.Command {
	var f traceFlags
	var window time.Duration
	var html string
	c := &cobra.Command{
		Use:   "stats --trace FILE",
		Short: "Show how a trace reuses its blocks: distance, age, working set, sessions",
		Long: "Show how a trace reuses its blocks. A reuse is a touch of a block after its first. Fields of --json, besides those\n" +
			"of trace info:\n" +
			"  dedup_ratio        blocks / distinct blocks\n" +
			"  hit_ratio_blocks   what a cache without limits would hit\n" +
			"  once_share         share of distinct blocks that are touched once\n" +
			"  reuse_distance     distinct other blocks between two touches of a block: an LRU cache of more blocks still has it\n" +
			"  reuse_age_ms       time between two touches of a block; reuse_age_shares within some times\n" +
			"  windows            distinct blocks that the requests of each --window touch: the working set over time\n" +
			"  sessions           if the trace names any",
		Args: cli.Arity(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if window < time.Millisecond {
				return cli.Usagef("--window %v is below 1ms", window)
			}
			s, err := t.measure(&f, window)
			if err != nil {
				return err
			}
			if err := t.show(s, func() error { return cli.PrintTable(t.Out, replay.StatsTable(&s)) }); err != nil {
				return err
			}
			return cli.Report(t.Err, html, func(w io.Writer) error { return replay.StatsReport(w, f.file, &s) })
		},
	}
	f.register(c)
	cli.DurationVar(c.Flags(), &window, "window", stats.DefaultWindow, "length of a window of the working set")
	c.Flags().StringVar(&html, "html", "", "write a report with plots to this file")
	return c
}

// measure reads the trace once.
func (t *Tool) measure(f *traceFlags, window time.Duration) (s stats.Stats, err error) {
	s.Assumed, err = readTrace(t, f, func(src trace.Source) (err error) {
		s, err = stats.Measure(src, stats.Options{BlockTokens: f.blockTokens, Limit: f.limit, Window: window})
		return err
	})
	return s, err
}
