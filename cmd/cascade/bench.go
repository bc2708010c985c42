package main

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/bench"
	"cascadekv/internal/units"
)

// benchFlags are what the benchmarks have in common.
type benchFlags struct {
	size   units.Bytes
	rounds int
	budget time.Duration
	tcp    bool
}

func (a *app) benchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Measure this machine against its own yardsticks", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	c.AddCommand(
		a.benchVerb("resp", "Compare SET and GET over the unix socket with redis-server, alternating", a.benchRESP),
		a.benchVerb("put", "Compare the put path with SHA-256 alone over the same bytes", a.benchPut),
		a.benchIndex(), a.benchFabric(), a.benchFabricRank(), a.benchCodec(), a.benchTuner())
	c.AddCommand(a.benchLustre())
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
	if name == "resp" {
		c.Flags().BoolVar(&f.tcp, "tcp", false, "over TCP on loopback instead of the unix socket")
	}
	c.Flags().DurationVar(&f.budget, "time", 500*time.Millisecond, "length of one measurement")
	return c
}

func (a *app) benchRESP(cmd *cobra.Command, f benchFlags) error {
	network := "unix"
	if f.tcp {
		network = "tcp"
	}
	res, err := bench.RESP(cmd.Context(), bench.RESPOptions{
		Size: int(f.size), Rounds: f.rounds, Budget: f.budget, Network: network, Progress: a.rounds("bench resp"),
	})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(res)
	}
	rows := [][]string{{"OP", "CONNS", "RANK MB/s", "REDIS MB/s", "RATIO", "RANK CPU s/GB", "REDIS CPU s/GB"}}
	for _, s := range res.Settings {
		rows = append(rows, []string{s.Op, strconv.Itoa(s.Conns), figure(s.Rank.MBps), figure(s.Redis.MBps), figure(s.Ratio), figure(s.Rank.CPUPerGB), figure(s.Redis.CPUPerGB)})
	}
	return a.table(rows)
}

func (a *app) benchPut(cmd *cobra.Command, f benchFlags) error {
	o := bench.PutOptions{Rounds: f.rounds, Budget: f.budget, Progress: a.rounds("bench put")}
	if cmd.Flags().Changed("size") {
		o.Sizes = []int{int(f.size)}
	}
	res, err := bench.Put(cmd.Context(), o)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(res)
	}
	rows := [][]string{{"SIZE", "PUT MB/s", "SHA-256 MB/s", "RATIO", "RATIO EVICTING"}}
	for _, s := range res.Sizes {
		rows = append(rows, []string{units.Bytes(s.Size).String(), figure(s.Put.MBps), figure(s.Hash.MBps), figure(s.Ratio), figure(s.Evicting.Ratio)})
	}
	return a.table(rows)
}

// rounds returns a progress callback that draws a bar.
func (a *app) rounds(what string) func(done, total int) {
	bar := a.progress(-1, what, false)
	return func(done, total int) {
		bar.ChangeMax(total)
		_ = bar.Set(done) // drawing is best effort
	}
}

func figure(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
