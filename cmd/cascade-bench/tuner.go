package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/tunerbench"
)

func (a *app) tunerCommand() *cobra.Command {
	var o tunerbench.Options
	var real tunerbench.AblationOptions
	onIndex := false
	c := verb("tuner", "Compare the index's adaptive controller with settings that stay",
		"Compare the index's adaptive controller with settings that stay, on the cost model.\n"+
			"The workload is that of the SGLang-LSM paper: ten stages of requests whose expected hit rate rises and falls.\n"+
			"T is the size ratio of levels, K the number of sorted runs; pebble and tiered are two shapes of tree.\n"+
			"With --real the index itself does the work of some phases, tuned and not, and what it really costs is compared.",
		func(cmd *cobra.Command) error {
			o.Progress = a.rounds("bench tuner")
			real.Progress = o.Progress
			if onIndex {
				return a.tuneIndex(cmd.Context(), real)
			}
			return a.tuneModel(cmd.Context(), o)
		})
	c.Flags().IntVar(&o.Requests, "requests", 1000, "requests of a stage")
	c.Flags().IntVar(&o.PromptTokens, "prompt", 8192, "tokens of a request")
	c.Flags().IntVar(&o.BlockTokens, "block", 16, "tokens of a block")
	c.Flags().Int64Var(&o.WarmTokens, "warm", 100_000_000, "tokens that are stored at the start")
	c.Flags().BoolVar(&onIndex, "real", false, "on a real index, tuned and not, instead of the cost model; the flags below are for it")
	c.Flags().StringVar(&real.Dir, "dir", "", "folder on a local disk (default: that for temporary files)")
	c.Flags().IntVar(&real.Blocks, "blocks", 400_000, "blocks in the index at the start")
	c.Flags().StringSliceVar(&real.Phases, "phases", []string{"write", "point", "range", "write"}, "kinds of work, one after the other")
	c.Flags().Float64Var(&real.Scale, "scale", 1, "of the length of each phase")
	c.Flags().Int64Var(&real.Cache, "cache", 128<<20, "bytes of the index's cache")
	c.Flags().IntVar(&real.Rounds, "rounds", 3, "rounds of both")
	return c
}

func (a *app) tuneIndex(ctx context.Context, o tunerbench.AblationOptions) error {
	res, err := tunerbench.Ablation(ctx, o)
	if err != nil {
		return err
	}
	head := []string{fmt.Sprintf("tuned (on) against %v (off), %d blocks, medians of %d rounds", res.Off, res.Blocks, res.Rounds)}
	rows := [][]string{{"PHASE", "ON AT", "SECONDS ON", "OFF", "ON/OFF", "MB WRITTEN ON", "OFF", "ON/OFF", "PAGES ON", "OFF", "ON/OFF", "RUNS ON", "OFF", "CPU ON/OFF"}}
	for _, p := range res.Phases {
		rows = append(rows, row(p.Kind, p.On.Setting, p.On.Seconds, p.Off.Seconds, p.Ratios.Seconds,
			p.On.Written/1e6, p.Off.Written/1e6, p.Ratios.Written, p.On.Pages, p.Off.Pages, p.Ratios.Pages, p.On.Runs, p.Off.Runs, p.Ratios.CPU))
	}
	r := res.Total
	rows = append(rows, row("all", "", "", "", r.Seconds, "", "", r.Written, "", "", r.Pages, "", "", r.CPU))
	return a.print(res, [][]string{head}, rows, changes(res.Changes))
}

func (a *app) tuneModel(ctx context.Context, o tunerbench.Options) error {
	res, err := tunerbench.Run(ctx, o)
	if err != nil {
		return err
	}
	var tables [][][]string
	for _, s := range res.Shapes {
		rows := [][]string{{"HIT RATE", "CONTROLLER AT", "CONTROLLER", "FIXED " + s.Fixed.String(), "BEST STATIC " + s.BestStatic.String(), "BEST OF STAGE", "AT"}}
		for _, st := range s.Stages {
			rows = append(rows, row(st.ExpectedHit, st.Setting, st.Controller, st.Fixed, st.BestStatic, st.BestStages, st.BestStage))
		}
		rows = append(rows, row("all", "", s.Total.Controller, s.Total.Fixed, s.Total.BestStatic, s.Total.BestStages, ""))
		tables = append(tables, [][]string{{fmt.Sprintf("%s tree: %s for each request", s.Shape, res.Unit)}}, rows,
			[][]string{{fmt.Sprintf("controller against fixed: %.1f %% less, %d changes", 100*s.Saving, len(s.Changes))}}, changes(s.Changes))
	}
	return a.print(res, tables...)
}

// changes is a line for each decision of a controller.
func changes[D any](all []D) (rows [][]string) {
	for _, d := range all {
		rows = append(rows, []string{fmt.Sprintf("  %v", d)})
	}
	return rows
}
