package main

import (
	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/remotebench"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

func (a *app) remoteCommand() *cobra.Command {
	o := remotebench.Options{Blocks: 40_000, Batch: 64, Rounds: 5}
	size := units.Bytes(4 << 10)
	c := verb("remote", "Measure the processor time of blocks that come from another rank",
		"Measure the processor time of both of two ranks over TCP for a block that one of them has and the other is asked for,\n"+
			"by MGET: read once, and read again, of which the third read leaves a copy.",
		func(cmd *cobra.Command) error {
			if o.Blocks <= 0 || o.Batch <= 0 || o.Rounds <= 0 || size <= 0 {
				return cli.Usagef("bench remote: --blocks, --batch, --rounds and --size must be above 0")
			}
			o.Size, o.Progress = int(size), a.rounds("bench remote")
			res, err := remotebench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			cells := func(what string, c remotebench.Cost) []string { return row(what, c.Both, c.Asker, c.Owner) }
			return a.print(res, [][]string{row("US A BLOCK", "BOTH RANKS", "ASKED", "OWNER"), cells("read once", res.Once), cells("read again", res.Repeats)})
		})
	c.Flags().IntVar(&o.Blocks, "blocks", o.Blocks, "blocks of one round")
	c.Flags().IntVar(&o.Batch, "batch", o.Batch, "keys of one MGET, 128 at most")
	c.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "rounds, of which the median counts")
	c.Flags().Var(&size, "size", "bytes of a block")
	return c
}
