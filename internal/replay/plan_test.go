package replay

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/plan"
	"cascadekv/internal/trace"
)

// samplePlan is of a synthetic trace, for two levels.
func samplePlan(t *testing.T, target plan.Target, shares ...float64) *plan.Result {
	t.Helper()
	synth, err := trace.NewSynth(trace.SynthOptions{Seed: 1, Requests: 300})
	if err != nil {
		t.Fatal(err)
	}
	r, err := plan.Run(t.Context(), plan.Options{
		Trace: synth, BlockTokens: trace.BlockTokens, BytesPerToken: 4096, PrefillTokensPerSecond: 8000, Engines: 2, GPUs: 8, GPUPrice: plan.GPUPrice, Target: target,
		Levels: []plan.Level{
			{Name: "dram", Bytes: 1 << 30, BytesPerSecond: 30e9, DollarsPerGBHour: plan.DRAMPrice, Policy: "prefix", Shares: shares},
			{Name: "lustre", Bytes: 8 << 30, BytesPerSecond: 5e9, Latency: 10 * time.Millisecond, DollarsPerGBHour: plan.SSDPrice, Policy: "prefix", Shares: shares},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	model, err := plan.ModelNamed("llama-2-70b")
	if err != nil {
		t.Fatal(err)
	}
	r.Trace, r.Model = "some/trace.jsonl", &model
	return &r
}

func TestPlanTable(t *testing.T) {
	for name, tc := range map[string]struct {
		target plan.Target
		want   []string
	}{
		"no target": {plan.Target{}, []string{`no target was given`, `300 requests in`, `llama-2-70b, 80 layers of 8 KV heads of 128 numbers of 2 B: 4 096 B per token, 2 MiB a block`,
			`(?m)^ *dram .* %`, `(?m)^ *computed .* %`, `(?m)^ *all computed .* 40 `, `→`, `to lustre an hour`}},
		"met":                             {plan.Target{P90: time.Hour, Hits: 0.1}, []string{`cheapest configuration with a P90 of 1h0m0s and 10.00 % hits:`}},
		"unreachable":                     {plan.Target{P90: time.Millisecond}, []string{`No configuration has a P90 of 1ms. Nearest comes:`}},
		"hits above an unlimited cache's": {plan.Target{Hits: 1}, []string{`not even an unlimited cache hits more than \d`}},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := PlanTable(&out, samplePlan(t, tc.target, 0, 0.1, 0.5, 1)); err != nil {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !regexp.MustCompile(want).MatchString(out.String()) {
					t.Errorf("no %q in\n%s", want, out.String())
				}
			}
		})
	}
	if err := PlanTable(full{}, samplePlan(t, plan.Target{}, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("into a full file: %v", err)
	}
}

func TestPlanReportStandsAlone(t *testing.T) {
	hostile := samplePlan(t, plan.Target{P90: time.Second}, 0, 0.1, 1)
	hostile.Trace = `<script>alert("x")</script>`
	for name, c := range map[string]struct {
		r    *plan.Result
		want []string
	}{
		"many":              {samplePlan(t, plan.Target{}, 0, 0.1, 0.5, 1), []string{"Plan for trace.jsonl", "Hits by level", `class="t1"`, "unlimited capacity", "all computed"}},
		"one configuration": {samplePlan(t, plan.Target{P90: time.Hour}, 1), []string{"target: 1h0m0s"}},
		"nothing at all":    {samplePlan(t, plan.Target{P90: time.Nanosecond}, 0), []string{`class="alarm"`}},
		"hostile words":     {hostile, []string{"&lt;script&gt;"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := PlanReport(&out, c.r); err != nil {
				t.Fatal(err)
			}
			checkPage(t, out.String(), c.want)
		})
	}
	if err := PlanReport(full{}, hostile); !errors.Is(err, os.ErrClosed) {
		t.Errorf("into a full file: %v", err)
	}
}
