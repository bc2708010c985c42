package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/units"
)

// benchFlags are what the benchmarks have in common.
type benchFlags struct {
	size   units.Bytes
	rounds int
	budget time.Duration
}

func (a *app) benchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Measure this machine against its own yardsticks", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	c.AddCommand(
		a.benchVerb("resp", "Compare SET and GET over the unix socket with redis-server, alternating", a.benchRESP),
		a.benchVerb("put", "Compare the put path with SHA-256 alone over the same bytes", a.benchPut))
	return c
}

func (a *app) benchVerb(name, short string, run func(*cobra.Command, benchFlags) error) *cobra.Command {
	f := benchFlags{size: 2 * units.MiB}
	c := &cobra.Command{Use: name, Short: short, Args: arity(0, 0), RunE: func(cmd *cobra.Command, _ []string) error {
		if f.size <= 0 || f.rounds <= 0 {
			return usagef("bench %s: --size and --rounds must be above 0", name)
		}
		return run(cmd, f)
	}}
	c.Flags().Var(&f.size, "size", "bytes of one value")
	c.Flags().IntVar(&f.rounds, "rounds", 9, "measurements of each, of which the median counts")
	c.Flags().DurationVar(&f.budget, "time", 500*time.Millisecond, "length of one measurement")
	return c
}

var errNoBench = errors.New("this build has no benchmarks")

func (a *app) benchRESP(*cobra.Command, benchFlags) error { return errNoBench }
func (a *app) benchPut(*cobra.Command, benchFlags) error  { return errNoBench }
