package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/codecbench"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

func (a *app) codecCommand() *cobra.Command {
	block, total := units.Bytes(0), 16*units.MiB
	o := codecbench.Options{Rounds: 5, Budget: 30 * time.Millisecond}
	c := verb("codec", "Measure how much smaller blocks become, and how fast, on one core",
		"Measure how much smaller blocks become, and how fast, on one core.\n"+
			"The blocks are tensors like those of a KV cache (bf16, fp16), random bytes, and zeros; auto is what a rank would choose.",
		func(cmd *cobra.Command) error {
			if o.Rounds <= 0 {
				return cli.Usagef("bench codec: --rounds must be above 0")
			}
			if cmd.Flags().Changed("size") {
				o.Sizes = []int{int(block)}
			}
			o.Total, o.Progress = int(total), a.rounds("bench codec")
			res, err := codecbench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.printCodec(res)
		})
	c.Flags().Var(&block, "size", "bytes of a block, instead of 64 KiB, 1 MiB and 2 MiB")
	c.Flags().Var(&total, "total", "bytes of all blocks of one size and kind; less than a core's caches flatters")
	c.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "measurements of each, of which the median counts")
	cli.DurationVar(c.Flags(), &o.Budget, "time", o.Budget, "length of one measurement")
	return c
}

func (a *app) printCodec(res codecbench.Result) error {
	rows := [][]string{{"DATA", "SIZE", "CODEC", "RATIO", "IN PAGES", "ENCODED", "ENCODE GB/s", "DECODE GB/s", "IN PLACE GB/s", "COPY GB/s"}}
	for _, s := range res.Settings {
		for _, c := range s.Codecs {
			name := c.Codec
			if name == "auto" {
				name = "auto: " + s.Auto
			}
			rows = append(rows, row(s.Data, size(s.Bytes), name, c.Ratio, c.PageRatio, fmt.Sprintf("%d/%d", c.Encoded, c.Blocks),
				c.EncodeGBps, c.DecodeGBps, c.InPlaceGBps, s.CopyGBps))
		}
	}
	planes := [][]string{{"PLANES", "OUT GB/s", "BACK GB/s", "COPY GB/s"}}
	for _, s := range res.Shuffle {
		planes = append(planes, row(s.Stride, s.OutGBps, s.BackGBps, s.CopyGBps))
	}
	return a.print(res, rows, planes)
}
