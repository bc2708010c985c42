package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade-bench/slackbench"
	"cascadekv/internal/cli"
)

func (a *app) slackCommand() *cobra.Command {
	o := slackbench.DefaultOptions()
	var flops, reads, writes float64
	var hits, html string
	c := verb("slack", "Simulate layer-wise restores: bubbles by hit rate, with transfers planned into slack, mixed, or before compute",
		"Simulate layer-wise restores of a prefix from NVMe (Tutti Fig. 13): how long the first token waits besides compute, by hit\n"+
			"rate. sync reads all layers before the first; mixed reads the next layer and writes the last one beside each, at once; slack\n"+
			"is planned by the scheduler of this program. Times come from a model of Llama3-8B on an H100 with two NVMe disks, with\n"+
			"noise; none but cpu_us_per_layer is measured. docs/gpu-store.md §3 has the model and what the fields of --json mean.",
		func(cmd *cobra.Command) error {
			o.Progress = a.rounds("bench slack")
			o.Model.Flops, o.Model.ReadRate, o.Model.WriteRate = flops*1e12, reads*1e9, writes*1e9
			if hits != "" {
				o.Hits = nil
				for text := range strings.SplitSeq(hits, ",") {
					hit, err := strconv.ParseFloat(text, 64)
					if err != nil {
						return cli.Usagef("bench slack: --hits %q: %w", text, err)
					}
					o.Hits = append(o.Hits, hit)
				}
			}
			res, err := slackbench.Run(cmd.Context(), o)
			if err != nil {
				return cli.AsUsage(fmt.Errorf("bench slack: %w", err))
			}
			tables := slackTables(res)
			if err := cli.Report(a.err, html, func(w io.Writer) error { return slackbench.Report(w, res, tables[1]) }); err != nil {
				return err
			}
			return a.print(res, tables...)
		})
	f := c.Flags()
	f.IntVar(&o.Prompt, "prompt", o.Prompt, "tokens of a prompt")
	f.StringVar(&hits, "hits", "", "shares of the prompt that are restored, with commas between them (default: 16 from 0 to 0.99)")
	f.StringVar(&html, "html", "", "write a report with plots to this file")
	f.IntVar(&o.Requests, "requests", o.Requests, "requests of each hit rate")
	f.IntVar(&o.Output, "output", o.Output, "tokens that each request decodes")
	f.Float64Var(&o.Noise, "noise", o.Noise, "standard deviation of times that the profile does not know, as a share")
	f.Float64Var(&o.Model.MixedLoss, "mixed-loss", o.Model.MixedLoss, "share of the throughput that reads and writes at once lose")
	f.Float64Var(&flops, "tflops", o.Model.Flops/1e12, "that compute reaches")
	f.Float64Var(&reads, "read", o.Model.ReadRate/1e9, "GB/s of reads")
	f.Float64Var(&writes, "write", o.Model.WriteRate/1e9, "GB/s of writes")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "of the noise")
	return c
}

func slackTables(r *slackbench.Result) [][][]string {
	head := row(fmt.Sprintf("%d tokens, %d layers, %v, noise %.3g %%; milliseconds", r.Prompt, r.Layers, r.Profile, 100*r.Noise))
	bubbles := [][]string{row("HIT RATE", "COMPUTE", "READ A LAYER", "BUBBLE SYNC", "MIXED", "SLACK", "OF COMPUTE", "TTFT SYNC", "MIXED", "SLACK", "GB/s MIXED", "SLACK", "UNSAVED")}
	for _, x := range r.Rows {
		bound := ""
		if x.IOBound {
			bound = " (I/O-bound)"
		}
		bubbles = append(bubbles, row(fmt.Sprintf("%.4g %%%s", 100*x.Hit, bound), x.Compute, x.LayerRead, x.Sync.Bubble, x.Mixed.Bubble, x.Slack.Bubble,
			fmt.Sprintf("%.3g %%", 100*x.Slack.Share), x.Sync.TTFT, x.Mixed.TTFT, x.Slack.TTFT, x.Mixed.GBPerSec, x.Slack.GBPerSec, fmt.Sprintf("%.3g %%", 100*x.Slack.Unsaved)))
	}
	at := func(v float64) string {
		if v >= 1 {
			return "never"
		}
		return fmt.Sprintf("%.1f %%", 100*v)
	}
	return [][][]string{{head}, bubbles, {
		row("crossover, bubble above compute", fmt.Sprintf("sync %s, mixed %s, slack %s", at(r.Crossover.Sync), at(r.Crossover.Mixed), at(r.Crossover.Slack))),
		row("I/O-bound from", at(r.IOBound)),
		row("largest bubble of slack before that", fmt.Sprintf("%.3g %% of compute", 100*r.BubbleShare)),
		row("slack against mixed, at least", fmt.Sprintf("%.4g times the speed to the first token, %.4g times the I/O throughput", r.TTFTRatio, r.IORatio)),
		row("estimate error", fmt.Sprintf("windows %.3g %%, reads %.3g %%, writes %.3g %%", 100*r.Stats.Window.Error, 100*r.Stats.Read.Error, 100*r.Stats.Write.Error)),
		row("a plan of a layer", fmt.Sprintf("%.3g us of processor time", r.CPUPerLayer)),
	}}
}
