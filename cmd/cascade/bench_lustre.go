package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"cascadekv/internal/bench"
	"cascadekv/internal/units"
)

func (a *app) benchLustre() *cobra.Command {
	o := bench.LustreOptions{Rounds: 5, Depth: 16}
	size, limit := units.Bytes(256*units.MiB), units.Bytes(512*units.MiB)
	c := &cobra.Command{Use: "lustre", Short: "Compare segments with one file per block, and their reads with fio, alternating", Args: arity(0, 0),
		Long: "Compare segments with one file per block in the form of CASCADE Table I, batches with single reads, and reads with fio.\n" +
			"It works on any file system; what it writes below --dir is removed again. --json tells what each side does.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Dir == "" {
				return usagef("bench lustre: name a directory on the file system with --dir")
			}
			if o.Rounds <= 0 || o.Depth <= 0 || size <= 0 || limit <= 0 {
				return usagef("bench lustre: --rounds, --depth, --size and --limit-size must be above 0")
			}
			o.Bytes, o.LimitBytes, o.Progress = int64(size), int64(limit), a.rounds("bench lustre")
			res, err := bench.Lustre(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.printLustre(res)
		}}
	c.Flags().StringVar(&o.Dir, "dir", "", "directory on the file system to measure")
	c.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "measurements of each, of which the median counts")
	c.Flags().IntVar(&o.Depth, "depth", o.Depth, "reads and writes under way at once, on every side")
	c.Flags().Var(&size, "size", "bytes of blocks in one measurement")
	c.Flags().Var(&limit, "limit-size", "bytes of the file that is read against fio")
	return c
}

func (a *app) printLustre(res *bench.LustreResult) error {
	if a.json {
		return a.printJSON(res)
	}
	rows := [][]string{{"SIZE", "BLOCKS", "", "AGGREGATED MB/s", "PER FILE MB/s", "SPEED-UP", "AT MOST", "OF MANY CALLERS"}}
	for _, b := range res.Blocks {
		size := units.Bytes(b.Bytes).String()
		rows = append(rows, []string{size, strconv.Itoa(b.Count), "write", figure(b.Aggregated.WriteMBps), figure(b.PerFile.WriteMBps), figure(b.SpeedupWrite), "", figure(b.Parallel.SpeedupWrite)},
			[]string{size, strconv.Itoa(b.Count), "read", figure(b.Aggregated.ReadMBps), figure(b.PerFile.ReadMBps), figure(b.SpeedupRead), figure(b.ReadBound), figure(b.Parallel.SpeedupRead)})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	rows = [][]string{{"", "MB/s", "AGAINST", "MB/s", "RATIO"},
		{strconv.Itoa(res.Batch.Count) + " blocks of " + units.Bytes(res.Batch.Bytes).String() + ": batch", figure(res.Batch.BatchMBps), "single reads", figure(res.Batch.SingleMBps), figure(res.Batch.Speedup)},
		{"chain of " + strconv.Itoa(res.Store.Count) + " blocks of " + units.Bytes(res.Store.Bytes).String() + " from a store: batch", figure(res.Store.BatchMBps), "single gets", figure(res.Store.SingleMBps), figure(res.Store.Speedup)},
		{"2 MiB reads in order", figure(res.Limit.SequentialMBps), "fio", figure(res.Limit.SequentialFio), ratioOf(res.Limit.SequentialRatio)},
		{"2 MiB reads in any order", figure(res.Limit.RandomMBps), "fio", figure(res.Limit.RandomFio), ratioOf(res.Limit.RandomRatio)}}
	if res.Limit.Why != "" {
		rows = append(rows, []string{"no fio: " + res.Limit.Why})
	}
	return a.table(rows)
}

func ratioOf(r *float64) string {
	if r == nil {
		return "-"
	}
	return figure(*r)
}
