package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/coldbench"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

func (a *app) coldCommand() *cobra.Command {
	o := coldbench.Options{Blocks: 5_000_000, Names: 3, Samples: 1000}
	size := units.Bytes(256)
	c := verb("cold", "Measure what blocks cost that a rank has in files alone",
		"Measure what blocks cost that a rank has in files alone: heap, a start, probes of chains and gets.\n"+
			"Five million blocks with three names each take about 8 GB in --dir, and several minutes.",
		func(cmd *cobra.Command) error {
			if o.Blocks <= 0 || o.Names <= 0 || o.Samples <= 0 || size <= 0 {
				return cli.Usagef("bench cold: --blocks, --names, --samples and --size must be above 0")
			}
			o.Size, o.Progress = int(size), a.rounds("bench cold")
			res, err := coldbench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.print(res, [][]string{
				row("WHAT", "FIGURE"),
				row("heap for each block", fmt.Sprintf("%.4g bytes", res.HeapPerBlock)), row("names in memory", res.InMemory),
				row("heap for each block after a start", fmt.Sprintf("%.4g bytes", res.Restarted)),
				row("store", fmt.Sprintf("%.4g s", res.StoreSeconds)), row("start", fmt.Sprintf("%.4g s", res.StartSeconds)),
				row("probe of a chain of 512", fmt.Sprintf("%.4g us", res.Probe)), row("get of one", fmt.Sprintf("%.4g us", res.Get)),
				row("its read alone", fmt.Sprintf("%.4g us", res.Read)),
			})
		})
	c.Flags().IntVar(&o.Blocks, "blocks", o.Blocks, "blocks, in chains of 512")
	c.Flags().IntVar(&o.Names, "names", o.Names, "names of each block")
	c.Flags().Var(&size, "size", "bytes of a block")
	c.Flags().IntVar(&o.Samples, "samples", o.Samples, "probes and gets that are timed")
	c.Flags().StringVar(&o.Profile, "profile", "", "folder for CPU profiles of storing, a start, probes and gets")
	c.Flags().StringVar(&o.Dir, "dir", "", "folder on a local disk (default: that for temporary files)")
	return c
}
