package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"cascadekv/internal/bench"
)

func (a *app) benchTuner() *cobra.Command {
	var o bench.TunerOptions
	var real bench.AblationOptions
	onIndex := false
	c := &cobra.Command{Use: "tuner", Short: "Compare the index's adaptive controller with settings that stay", Args: arity(0, 0),
		Long: "Compare the index's adaptive controller with settings that stay, on the cost model.\n" +
			"The workload is that of the SGLang-LSM paper: ten stages of requests whose expected hit rate rises and falls.\n" +
			"T is the size ratio of levels, K the number of sorted runs; pebble and tiered are two shapes of tree.\n" +
			"With --real the index itself does the work of some phases, tuned and not, and what it really costs is compared.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if onIndex {
				real.Progress = a.rounds("bench tuner")
				res, err := bench.Ablation(cmd.Context(), real)
				if err != nil {
					return err
				}
				return a.printAblation(res)
			}
			o.Progress = a.rounds("bench tuner")
			res, err := bench.Tuner(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.printTuner(res)
		}}
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

func (a *app) printAblation(res *bench.AblationResult) error {
	if a.json {
		return a.printJSON(res)
	}
	fmt.Fprintf(a.out, "tuned (on) against %v (off), %d blocks, medians of %d rounds\n", res.Off, res.Blocks, res.Rounds)
	rows := [][]string{{"PHASE", "ON AT", "SECONDS ON", "OFF", "ON/OFF", "MB WRITTEN ON", "OFF", "ON/OFF", "PAGES ON", "OFF", "ON/OFF", "RUNS ON", "OFF", "CPU ON/OFF"}}
	mb := func(n float64) string { return figure(n / 1e6) }
	for _, p := range res.Phases {
		rows = append(rows, []string{p.Kind, p.On.Setting, figure(p.On.Seconds), figure(p.Off.Seconds), figure(p.Ratios.Seconds),
			mb(p.On.Written), mb(p.Off.Written), figure(p.Ratios.Written), figure(p.On.Pages), figure(p.Off.Pages), figure(p.Ratios.Pages),
			figure(p.On.Runs), figure(p.Off.Runs), figure(p.Ratios.CPU)})
	}
	r := res.Total
	rows = append(rows, []string{"all", "", "", "", figure(r.Seconds), "", "", figure(r.Written), "", "", figure(r.Pages), "", "", figure(r.CPU)})
	if err := a.table(rows); err != nil {
		return err
	}
	for _, d := range res.Changes {
		fmt.Fprintf(a.out, "  %s\n", d)
	}
	return nil
}

func (a *app) printTuner(res bench.TunerResult) error {
	if a.json {
		return a.printJSON(res)
	}
	for _, s := range res.Shapes {
		fmt.Fprintf(a.out, "%s tree: %s for each request\n", s.Shape, res.Unit)
		rows := [][]string{{"HIT RATE", "CONTROLLER AT", "CONTROLLER", "FIXED " + s.Fixed.String(), "BEST STATIC " + s.BestStatic.String(), "BEST OF STAGE", "AT"}}
		for _, st := range s.Stages {
			rows = append(rows, []string{strconv.FormatFloat(st.ExpectedHit, 'g', 3, 64), st.Setting.String(), figure(st.Controller), figure(st.Fixed),
				figure(st.BestStatic), figure(st.BestStages), st.BestStage.String()})
		}
		rows = append(rows, []string{"all", "", figure(s.Total.Controller), figure(s.Total.Fixed), figure(s.Total.BestStatic), figure(s.Total.BestStages), ""})
		if err := a.table(rows); err != nil {
			return err
		}
		fmt.Fprintf(a.out, "controller against fixed: %.1f %% less, %d changes\n", 100*s.Saving, len(s.Changes))
		for _, d := range s.Changes {
			fmt.Fprintf(a.out, "  %v\n", d)
		}
	}
	return nil
}
