package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"cascadekv/internal/bench"
	"cascadekv/internal/units"
)

func (a *app) benchLustre() *cobra.Command {
	o := bench.LustreOptions{Rounds: 5, Depth: 16}
	size, limit := units.Bytes(256*units.MiB), units.Bytes(512*units.MiB)
	var keep, kept bool
	c := &cobra.Command{Use: "lustre", Short: "Compare segments with one file per block, and their reads with fio, alternating", Args: arity(0, 0),
		Long: "Compare segments with one file per block in the form of CASCADE Table I, batches with single reads, and reads with fio.\n" +
			"It works on any file system; what it writes below --dir is removed again. --json tells what each side does.\n" +
			"A file server, or the host of a virtual disk, keeps what was just written in memory, and so reads are too fast on both sides.\n" +
			"To measure cold ones, write with --keep, and read with --kept from another node, or when the servers have forgotten.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Dir == "" {
				return usagef("bench lustre: name a directory on the file system with --dir")
			}
			if o.Rounds <= 0 || o.Depth <= 0 || size <= 0 || limit <= 0 {
				return usagef("bench lustre: --rounds, --depth, --size and --limit-size must be above 0")
			}
			if keep && kept {
				return usagef("bench lustre: --keep writes and --kept reads; give one of them at a time")
			}
			o.Bytes, o.LimitBytes, o.Progress = int64(size), int64(limit), a.rounds("bench lustre")
			switch {
			case keep:
				return a.keepLustre(cmd.Context(), o)
			case kept:
				return a.readKept(cmd.Context(), o)
			}
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
	c.Flags().BoolVar(&keep, "keep", false, "write blocks, some 2.3 GB a round, and leave them below --dir for --kept")
	c.Flags().BoolVar(&kept, "kept", false, "read what --keep left below --dir, each block once, and remove it")
	return c
}

func (a *app) keepLustre(ctx context.Context, o bench.LustreOptions) error {
	k, err := bench.KeepLustre(ctx, o)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(k)
	}
	_, err = fmt.Fprintf(a.out, "%d sets of blocks are in %s; later, or on another node: cascade bench lustre --kept --dir %s\n", k.Rounds*len(k.Blocks), k.Dir, o.Dir)
	return err
}

func (a *app) readKept(ctx context.Context, o bench.LustreOptions) error {
	res, err := bench.ReadKept(ctx, o)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(res)
	}
	rows := [][]string{{"SIZE", "BLOCKS", "", "AGGREGATED MB/s", "PER FILE MB/s", "SPEED-UP", "AT MOST"}}
	for _, b := range res.Blocks {
		rows = append(rows, pairRows(b)...)
	}
	return a.table(rows)
}

// pairRows is the two lines of one size of block: written, and read.
func pairRows(b bench.LustreRow) [][]string {
	size, count := units.Bytes(b.Bytes).String(), strconv.Itoa(b.Count)
	return [][]string{
		{size, count, "write", figure(b.Aggregated.WriteMBps), figure(b.PerFile.WriteMBps), figure(b.SpeedupWrite), ""},
		{size, count, "read", figure(b.Aggregated.ReadMBps), figure(b.PerFile.ReadMBps), figure(b.SpeedupRead), figure(b.ReadBound)},
	}
}

func (a *app) printLustre(res *bench.LustreResult) error {
	if a.json {
		return a.printJSON(res)
	}
	rows := [][]string{{"SIZE", "BLOCKS", "", "AGGREGATED MB/s", "PER FILE MB/s", "SPEED-UP", "AT MOST", "OF MANY CALLERS"}}
	for _, b := range res.Blocks {
		pair := pairRows(b.LustreRow)
		rows = append(rows, append(pair[0], figure(b.Parallel.SpeedupWrite)), append(pair[1], figure(b.Parallel.SpeedupRead)))
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
