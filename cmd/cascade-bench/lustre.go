package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/lustrebench"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

func (a *app) lustreCommand() *cobra.Command {
	o := lustrebench.Options{Rounds: 5, Depth: 16}
	blocks, limit := units.Bytes(256*units.MiB), units.Bytes(512*units.MiB)
	var keep, kept bool
	c := verb("lustre", "Compare segments with one file per block, and their reads with fio, alternating",
		"Compare segments with one file per block in the form of CASCADE Table I, batches with single reads, and reads with fio.\n"+
			"It works on any file system; what it writes below --dir is removed again. --json describes what each side does.\n"+
			"A file server, or the host of a virtual disk, keeps what was just written in memory, and so reads are too fast on both sides.\n"+
			"To measure cold ones, write with --keep, and read with --kept from another node, or when the servers have forgotten.",
		func(cmd *cobra.Command) error {
			switch {
			case o.Dir == "":
				return cli.Usagef("bench lustre: name a directory on the file system with --dir")
			case o.Rounds <= 0 || o.Depth <= 0 || blocks <= 0 || limit <= 0:
				return cli.Usagef("bench lustre: --rounds, --depth, --size and --limit-size must be above 0")
			case keep && kept:
				return cli.Usagef("bench lustre: --keep writes and --kept reads; give one of them at a time")
			}
			o.Bytes, o.LimitBytes, o.Progress = int64(blocks), int64(limit), a.rounds("bench lustre")
			switch {
			case keep:
				return a.keepLustre(cmd.Context(), o)
			case kept:
				return a.readKept(cmd.Context(), o)
			}
			return a.measureLustre(cmd.Context(), o)
		})
	c.Flags().StringVar(&o.Dir, "dir", "", "directory on the file system to measure")
	c.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "measurements of each, of which the median counts")
	c.Flags().IntVar(&o.Depth, "depth", o.Depth, "reads and writes under way at once, on every side")
	c.Flags().Var(&blocks, "size", "bytes of blocks in one measurement")
	c.Flags().Var(&limit, "limit-size", "bytes of the file that is read against fio")
	c.Flags().BoolVar(&keep, "keep", false, "write blocks, some 2.3 GB a round, and leave them below --dir for --kept")
	c.Flags().BoolVar(&kept, "kept", false, "read what --keep left below --dir, each block once, and remove it")
	return c
}

func (a *app) keepLustre(ctx context.Context, o lustrebench.Options) error {
	k, err := lustrebench.Keep(ctx, o)
	if err != nil {
		return err
	}
	return a.print(k, [][]string{{fmt.Sprintf("%d sets of blocks are in %s; later, or on another node: cascade bench lustre --kept --dir %s", k.Rounds*len(k.Blocks), k.Dir, o.Dir)}})
}

func (a *app) readKept(ctx context.Context, o lustrebench.Options) error {
	res, err := lustrebench.ReadKept(ctx, o)
	if err != nil {
		return err
	}
	rows := [][]string{{"SIZE", "BLOCKS", "", "AGGREGATED MB/s", "PER FILE MB/s", "SPEED-UP", "AT MOST"}}
	for _, b := range res.Blocks {
		rows = append(rows, pairRows(b)...)
	}
	return a.print(res, rows)
}

// pairRows is the two lines of one size of block: written, and read.
func pairRows(b lustrebench.Row) [][]string {
	return [][]string{
		row(size(b.Bytes), b.Count, "write", b.Aggregated.WriteMBps, b.PerFile.WriteMBps, b.SpeedupWrite, ""),
		row(size(b.Bytes), b.Count, "read", b.Aggregated.ReadMBps, b.PerFile.ReadMBps, b.SpeedupRead, b.ReadBound),
	}
}

func (a *app) measureLustre(ctx context.Context, o lustrebench.Options) error {
	res, err := lustrebench.Run(ctx, o)
	if err != nil {
		return err
	}
	sizes := [][]string{{"SIZE", "BLOCKS", "", "AGGREGATED MB/s", "PER FILE MB/s", "SPEED-UP", "AT MOST", "OF MANY CALLERS"}}
	for _, b := range res.Blocks {
		pair := pairRows(b.Row)
		sizes = append(sizes, append(pair[0], row(b.Parallel.SpeedupWrite)...), append(pair[1], row(b.Parallel.SpeedupRead)...))
	}
	limits := [][]string{{"", "MB/s", "AGAINST", "MB/s", "RATIO"},
		row(fmt.Sprintf("%d blocks of %s: batch", res.Batch.Count, size(res.Batch.Bytes)), res.Batch.BatchMBps, "single reads", res.Batch.SingleMBps, res.Batch.Speedup),
		row(fmt.Sprintf("chain of %d blocks of %s from a store: batch", res.Store.Count, size(res.Store.Bytes)), res.Store.BatchMBps, "single gets", res.Store.SingleMBps, res.Store.Speedup),
		row("2 MiB reads in order", res.Limit.SequentialMBps, "fio", res.Limit.SequentialFio, res.Limit.SequentialRatio),
		row("2 MiB reads in any order", res.Limit.RandomMBps, "fio", res.Limit.RandomFio, res.Limit.RandomRatio)}
	if res.Limit.Why != "" {
		limits = append(limits, []string{"no fio: " + res.Limit.Why})
	}
	return a.print(res, sizes, limits)
}
