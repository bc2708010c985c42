package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"cascadekv/internal/bench"
	"cascadekv/internal/units"
)

func (a *app) benchIndex() *cobra.Command {
	o := bench.IndexOptions{Entries: 5_000_000}
	c := &cobra.Command{Use: "index", Short: "Measure look-ups, memory, reopening and rebuilding of the index of segments", Args: arity(0, 0),
		Long: "Measure look-ups, memory, reopening and rebuilding of the index of segments.\n" +
			"Five million blocks take about 1.5 GB in --dir, and the segments that the index is rebuilt from 1 GB more; both are removed\n" +
			"afterwards.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Entries < 1 {
				return usagef("bench index: --entries must be above 0")
			}
			o.Progress = a.rounds("bench index")
			res, err := bench.Index(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.printIndex(res)
		}}
	c.Flags().IntVar(&o.Entries, "entries", o.Entries, "blocks in the index, each with a name in a chain")
	c.Flags().StringVar(&o.Dir, "dir", "", "folder on a local disk (default: that for temporary files)")
	return c
}

func (a *app) printIndex(res *bench.IndexResult) error {
	if a.json {
		return a.printJSON(res)
	}
	rows := [][]string{{"WHAT", "P50 us", "P99 us", "OPS"}}
	for _, row := range []struct {
		what string
		took bench.Latency
	}{
		{"get by id", res.PresentGet}, {"get by name", res.PresentName}, {"probe of an absent name", res.AbsentProbe},
		{"probe of a chain of 512", res.ChainProbe}, {"put of 16 blocks", res.Put},
		{"get_batch of 1000", res.GetBatch.Batch}, {"1000 gets by id", res.GetBatch.Singles}, {"1000 gets by name", res.GetBatch.Names},
	} {
		rows = append(rows, []string{row.what, figure(row.took.P50), figure(row.took.P99), strconv.Itoa(row.took.Ops)})
	}
	rows = append(rows,
		[]string{"memory", units.Bytes(res.Memory.RSS).Human()}, []string{"disk", units.Bytes(res.DiskBytes).Human()},
		[]string{"load", figure(res.LoadSeconds) + " s"}, []string{"reopen", figure(res.ReopenSeconds) + " s"},
		[]string{"rebuild of " + strconv.Itoa(res.Rebuild.Blocks), figure(res.Rebuild.Seconds) + " s"})
	return a.table(rows)
}
