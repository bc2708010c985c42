package main

import (
	"time"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/putbench"
	"cascadekv/cmd/cascade-bench/respbench"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

// common are the flags of resp and put.
type common struct {
	size   units.Bytes
	rounds int
	budget time.Duration
}

func (a *app) commonVerb(name, short string, run func(*cobra.Command, common) error) *cobra.Command {
	f := common{size: 2 * units.MiB}
	c := verb(name, short, "", func(cmd *cobra.Command) error {
		if f.size <= 0 || f.rounds <= 0 {
			return cli.Usagef("bench %s: --size and --rounds must be above 0", name)
		}
		return run(cmd, f)
	})
	c.Flags().Var(&f.size, "size", "bytes of one value")
	c.Flags().IntVar(&f.rounds, "rounds", 9, "measurements of each, of which the median counts")
	cli.DurationVar(c.Flags(), &f.budget, "time", 500*time.Millisecond, "length of one measurement")
	return c
}

func (a *app) respCommand() *cobra.Command {
	tcp := false
	c := a.commonVerb("resp", "Compare SET and GET over the unix socket with redis-server, alternating", func(cmd *cobra.Command, f common) error {
		o := respbench.Options{Size: int(f.size), Rounds: f.rounds, Budget: f.budget, Network: "unix", Progress: a.rounds("bench resp")}
		if tcp {
			o.Network = "tcp"
		}
		res, err := respbench.Run(cmd.Context(), o)
		if err != nil {
			return err
		}
		rows := [][]string{{"OP", "CONNS", "RANK MB/s", "REDIS MB/s", "RATIO", "RANK CPU s/GB", "REDIS CPU s/GB"}}
		for _, s := range res.Settings {
			rows = append(rows, row(s.Op, s.Conns, s.Rank.MBps, s.Redis.MBps, s.Ratio, s.Rank.CPUPerGB, s.Redis.CPUPerGB))
		}
		return a.print(res, rows)
	})
	c.Flags().BoolVar(&tcp, "tcp", false, "over TCP on loopback instead of the unix socket")
	return c
}

func (a *app) putCommand() *cobra.Command {
	return a.commonVerb("put", "Compare the put path with SHA-256 alone over the same bytes", func(cmd *cobra.Command, f common) error {
		o := putbench.Options{Rounds: f.rounds, Budget: f.budget, Progress: a.rounds("bench put")}
		if cmd.Flags().Changed("size") {
			o.Sizes = []int{int(f.size)}
		}
		res, err := putbench.Run(cmd.Context(), o)
		if err != nil {
			return err
		}
		rows := [][]string{{"SIZE", "PUT MB/s", "SHA-256 MB/s", "RATIO", "RATIO EVICTING"}}
		for _, s := range res.Sizes {
			rows = append(rows, row(size(s.Size), s.Put.MBps, s.Hash.MBps, s.Ratio, s.Evicting.Ratio))
		}
		return a.print(res, rows)
	})
}
