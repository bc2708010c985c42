package replay

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"cascadekv/internal/simulate"
	"cascadekv/internal/trace"
)

// sampleSimulation is of a synthetic trace.
func sampleSimulation(t *testing.T, capacities ...float64) simulate.Result {
	t.Helper()
	synth, err := trace.NewSynth(trace.SynthOptions{Seed: 1, Requests: 300})
	if err != nil {
		t.Fatal(err)
	}
	model := simulate.DefaultTTFTModel
	model.Engines = 4
	r, err := simulate.Run(t.Context(), simulate.Options{Trace: synth, Policies: []string{"prefix", "paper"}, Capacities: capacities, TTFT: &model})
	if err != nil {
		t.Fatal(err)
	}
	r.Trace = "some/trace.jsonl"
	return r
}

func TestSimulationTable(t *testing.T) {
	var out strings.Builder
	if err := SimulationTable(&out, sampleSimulation(t, 0.05, 0.4)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`300 requests, `, `hits at +5 % +40 % +hits / LRU +LRU→MIN closed`, `(?m)^ *lru .*1\.000 +0\.000 +1\.00`, `(?m)^ *prefix `, `(?m)^ *min .* 1\.000 `,
		`10 000 tokens/s prefill; loads at 20 GiB/s after 1ms; 327 680 B per token; requests wait for one of 4 engines`, `p90 / LRU's`, `(?m)^ *paper .* / .* / `} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if err := SimulationTable(full{}, sampleSimulation(t, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("into a full file: %v", err)
	}
}

func TestSimulationReportStandsAlone(t *testing.T) {
	plain := sampleSimulation(t, 0.4, 0.01, 0.02, 0.1)
	single := sampleSimulation(t, 0.1)
	single.TTFT = nil
	hostile := sampleSimulation(t, 0.1, 0.2)
	hostile.Trace = `<script>alert("x")</script>`
	nothing := sampleSimulation(t, 0.1, 1)
	for _, hits := range nothing.Policies {
		clear(hits)
	}
	for name, c := range map[string]struct {
		r    simulate.Result
		want []string
	}{
		"four capacities": {plain, []string{"Simulation of trace.jsonl", "Time to first token", "LRU→MIN closed", `class="limit curve"`, "p99"}},
		"one capacity":    {single, []string{"Hits over capacity", "10 %"}},
		"hostile words":   {hostile, []string{"&lt;script&gt;"}},
		"no hits":         {nothing, []string{"Hits over capacity"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := SimulationReport(&out, c.r); err != nil {
				t.Fatal(err)
			}
			checkPage(t, out.String(), c.want)
		})
	}
	if err := SimulationReport(full{}, single); !errors.Is(err, os.ErrClosed) {
		t.Errorf("into a full file: %v", err)
	}
}

// checkPage holds a page to what must be in it, and to what no page has that needs nothing else.
func checkPage(t *testing.T, page string, wants []string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in the page", want)
		}
	}
	for _, bad := range []string{"<script", "http:", "https:", "url(", "ZgotmplZ", "NaN", "Inf", "e-0", "e+0"} {
		if strings.Contains(page, bad) {
			t.Errorf("%q is in the page", bad)
		}
	}
	checkSVG(t, page)
}
