package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/indexbench"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

func (a *app) indexCommand() *cobra.Command {
	o := indexbench.Options{Entries: 5_000_000}
	c := verb("index", "Measure look-ups, memory, reopening and rebuilding of the index of segments",
		"Measure look-ups, memory, reopening and rebuilding of the index of segments.\n"+
			"Five million blocks take about 1.5 GB in --dir, and the segments that the index is rebuilt from 1 GB more; both are removed\n"+
			"afterwards.",
		func(cmd *cobra.Command) error {
			if o.Entries < 1 {
				return cli.Usagef("bench index: --entries must be above 0")
			}
			o.Progress = a.rounds("bench index")
			res, err := indexbench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.printIndex(res)
		})
	c.Flags().IntVar(&o.Entries, "entries", o.Entries, "blocks in the index, each with a name in a chain")
	c.Flags().StringVar(&o.Dir, "dir", "", "folder on a local disk (default: that for temporary files)")
	return c
}

func (a *app) printIndex(res *indexbench.Result) error {
	rows := [][]string{{"WHAT", "P50 us", "P99 us", "OPS"}}
	for _, r := range []struct {
		what string
		took indexbench.Latency
	}{
		{"get by id", res.PresentGet}, {"get by name", res.PresentName}, {"probe of an absent name", res.AbsentProbe},
		{"probe of a chain of 512", res.ChainProbe}, {"put of 16 blocks", res.Put},
		{"get_batch of 1000", res.GetBatch.Batch}, {"1000 gets by id", res.GetBatch.Singles}, {"1000 gets by name", res.GetBatch.Names},
	} {
		rows = append(rows, row(r.what, r.took.P50, r.took.P99, r.took.Ops))
	}
	seconds := func(s float64) string { return fmt.Sprintf("%.4g s", s) }
	return a.print(res, append(rows,
		row("memory", units.Bytes(res.Memory.RSS).Human()), row("disk", units.Bytes(res.DiskBytes).Human()),
		row("load", seconds(res.LoadSeconds)), row("reopen", seconds(res.ReopenSeconds)),
		row(fmt.Sprint("rebuild of ", res.Rebuild.Blocks), seconds(res.Rebuild.Seconds))))
}
