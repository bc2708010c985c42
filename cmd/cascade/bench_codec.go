package main

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/bench"
	"cascadekv/internal/units"
)

func (a *app) benchCodec() *cobra.Command {
	size, total := units.Bytes(0), 16*units.MiB
	o := bench.CodecOptions{Rounds: 5, Budget: 30 * time.Millisecond}
	c := &cobra.Command{Use: "codec", Short: "Measure how much smaller blocks become, and how fast, on one core", Args: arity(0, 0),
		Long: "Measure how much smaller blocks become, and how fast, on one core.\n" +
			"The blocks are tensors like those of a KV cache (bf16, fp16), random bytes, and zeros; auto is what a rank would choose.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Rounds <= 0 {
				return usagef("bench codec: --rounds must be above 0")
			}
			if cmd.Flags().Changed("size") {
				o.Sizes = []int{int(size)}
			}
			o.Total = int(total)
			o.Progress = a.rounds("bench codec")
			res, err := bench.Codec(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.printCodec(res)
		}}
	c.Flags().Var(&size, "size", "bytes of a block, instead of 64 KiB, 1 MiB and 2 MiB")
	c.Flags().Var(&total, "total", "bytes of all blocks of one size and kind; less than a core's caches flatters")
	c.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "measurements of each, of which the median counts")
	c.Flags().DurationVar(&o.Budget, "time", o.Budget, "length of one measurement")
	return c
}

func (a *app) printCodec(res bench.CodecResult) error {
	if a.json {
		return a.printJSON(res)
	}
	rows := [][]string{{"DATA", "SIZE", "CODEC", "RATIO", "IN PAGES", "ENCODED", "ENCODE GB/s", "DECODE GB/s", "IN PLACE GB/s", "COPY GB/s"}}
	for _, s := range res.Settings {
		for _, c := range s.Codecs {
			name := c.Codec
			if name == "auto" {
				name = "auto: " + s.Auto
			}
			rows = append(rows, []string{s.Data, units.Bytes(s.Bytes).String(), name, figure(c.Ratio), figure(c.PageRatio),
				strconv.Itoa(c.Encoded) + "/" + strconv.Itoa(c.Blocks), figure(c.EncodeGBps), figure(c.DecodeGBps), figure(c.InPlaceGBps), figure(s.CopyGBps)})
		}
	}
	if err := a.table(rows); err != nil {
		return err
	}
	rows = [][]string{{"PLANES", "OUT GB/s", "BACK GB/s", "COPY GB/s"}}
	for _, s := range res.Shuffle {
		rows = append(rows, []string{strconv.Itoa(s.Stride), figure(s.OutGBps), figure(s.BackGBps), figure(s.CopyGBps)})
	}
	return a.table(rows)
}
