package replay

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/trace"
	"cascadekv/internal/trace/stats"
)

// TestStatsReport: pages of usual and of empty traces are whole, and drawings
// stay within their frames however many windows there are.
func TestStatsReport(t *testing.T) {
	synth, err := trace.NewSynth(trace.SynthOptions{Hints: true})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		source trace.Source
		window time.Duration
		want   []string
	}{
		"synth":   {synth, time.Second, []string{"<title>Trace a&lt;b.gz</title>", "of reuses, ", "distinct blocks", "sessions", "for the first time"}},
		"one":     {one(trace.Request{InputTokens: 512, Hashes: []uint64{1}}), 0, []string{"0.00 % of blocks", "100.00 % of distinct blocks"}},
		"nothing": {one(), 0, []string{"0 requests"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := stats.Measure(c.source, stats.Options{Window: c.window})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := StatsReport(&out, "dir/a<b.gz", &s); err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in the page", want)
				}
			}
			for _, bad := range []string{"ZgotmplZ", "NaN", "Inf", "e-0", "e+0"} {
				if strings.Contains(out.String(), bad) {
					t.Errorf("%q is in the page", bad)
				}
			}
			checkSVG(t, out.String())
			if n := strings.Count(out.String(), `<rect class="t1"`); n > maxColumns {
				t.Errorf("%d columns, want at most %d", n, maxColumns)
			}
		})
	}
}

func one(all ...trace.Request) trace.Source { return &requests{all} }

type requests struct{ left []trace.Request }

func (r *requests) Next(req *trace.Request) error {
	if len(r.left) == 0 {
		return io.EOF
	}
	*req, r.left = r.left[0], r.left[1:]
	return nil
}
