package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/tunerbench"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

func (a *app) stagesCommand() *cobra.Command {
	var o tunerbench.StagesOptions
	size, memory := units.Bytes(256), units.Bytes(16*units.MiB)
	c := verb("stages", "Compare a rank whose index is tuned with one whose is not, through the paper's ten stages",
		"Compare a rank with lustre.index_tuning = auto (on) with one that has it off, through the ten stages of the SGLang-LSM paper, scaled down.\n"+
			"Each request probes a chain, looks some names up, loads the head that an earlier stage or another rank stored, and puts the rest.\n"+
			"After each stage the rank rests until its controller has had a quiet moment, 5 to 15 s, which no figure of seconds includes.",
		func(cmd *cobra.Command) error {
			if o.Requests <= 0 || o.Blocks <= 0 || o.Warm <= 0 || o.Conns <= 0 || o.Rounds <= 0 || size <= 0 || memory <= 0 {
				return cli.Usagef("bench stages: --requests, --blocks, --warm, --conns, --rounds, --size and --memory must be above 0")
			}
			o.Size, o.Memory, o.Progress = int(size), int64(memory), a.rounds("bench stages")
			return a.measureStages(cmd.Context(), o)
		})
	c.Flags().StringVar(&o.Dir, "dir", "", "folder on a local disk (default: that for temporary files)")
	c.Flags().IntVar(&o.Requests, "requests", 400, "requests of a stage")
	c.Flags().IntVar(&o.Blocks, "blocks", 256, "blocks of a request")
	c.Flags().Var(&size, "size", "bytes of a block")
	c.Flags().IntVar(&o.Warm, "warm", 1200, "chains that another rank stores before the first stage")
	c.Flags().IntVar(&o.Lookups, "lookups", 8, "look-ups of one name for each request, half of them of names that are absent")
	c.Flags().Var(&memory, "memory", "shared memory of the rank, less than a stage stores")
	c.Flags().IntVar(&o.Conns, "conns", 2, "connections")
	c.Flags().IntVar(&o.Rounds, "rounds", 3, "rounds of both")
	c.Flags().BoolVar(&o.NoPause, "no-pause", false, "begin each stage at once: the controller has no quiet moment, and changes nothing")
	return c
}

func (a *app) measureStages(ctx context.Context, o tunerbench.StagesOptions) error {
	res, err := tunerbench.Stages(ctx, o)
	if err != nil {
		return err
	}
	head := []string{fmt.Sprintf("a rank tuned (on) and not (off), %d requests of %d blocks of %s a stage, medians of %d rounds", res.Requests, res.Blocks, size(res.Size), res.Rounds)}
	rows := [][]string{{"HIT RATE", "PUT", "HIT", "RANGE", "MISS", "ON AT", "RETUNES", "SECONDS ON", "OFF", "ON/OFF", "CPU ON/OFF", "MB WRITTEN ON", "OFF", "ON/OFF", "BUT MERGES", "BUT SEGMENTS", "MISSED"}}
	line := func(hit any, s tunerbench.StagesTotal) []string {
		c, m := s.On.Catalogue, s.On.Catalogue.Mix
		return row(hit, m.Put, m.Hit, m.Range, m.Miss, fmt.Sprintf("T=%d K=%d", c.T, c.K), c.Retunes, s.On.Seconds, s.Off.Seconds, s.Ratios.Seconds, s.Ratios.CPU,
			s.On.Written/1e6, s.Off.Written/1e6, s.Ratios.Written, s.Ratios.Unmerged, s.Ratios.Other, s.On.Missed+s.Off.Missed)
	}
	for _, s := range res.Stages {
		rows = append(rows, line(s.ExpectedHit, s.StagesTotal))
	}
	return a.print(res, [][]string{head}, append(rows, line("all", res.Total)))
}
