package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"cascadekv/internal/bench"
)

func (a *app) benchTuner() *cobra.Command {
	var o bench.TunerOptions
	c := &cobra.Command{Use: "tuner", Short: "Compare the index's adaptive controller with settings that stay, on the cost model", Args: arity(0, 0),
		Long: "Compare the index's adaptive controller with settings that stay, on the cost model.\n" +
			"The workload is that of the SGLang-LSM paper: ten stages of requests whose expected hit rate rises and falls.\n" +
			"T is the size ratio of levels, K the number of sorted runs; pebble and tiered are two shapes of tree.",
		RunE: func(cmd *cobra.Command, _ []string) error {
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
	return c
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
