package slackbench

import (
	_ "embed"
	"fmt"
	"io"
	"math"

	"cascadekv/internal/plot"
)

//go:embed report.html
var reportText string

var reportPage = plot.Page(reportText)

// orders are what a report compares, each in a colour of its own.
var orders = []struct {
	Name, Class string
	of          func(*Row) *Figures
}{
	{"sync", "r0", func(r *Row) *Figures { return &r.Sync }},
	{"mixed", "r1", func(r *Row) *Figures { return &r.Mixed }},
	{"slack", "r2", func(r *Row) *Figures { return &r.Slack }},
}

// Report writes a result as one HTML page that needs nothing else: bubbles and times to the first token by hit rate, as
// Tutti Fig. 13 has them, and table, rows of texts whose first is the head.
func Report(w io.Writer, r *Result, table [][]string) error {
	err := reportPage.Execute(w, map[string]any{
		"Head":    fmt.Sprintf("%d tokens, %d layers, %s on %s, noise %.3g %%", r.Prompt, r.Layers, r.Profile.Model, r.Profile.GPU, 100*r.Noise),
		"Orders":  orders,
		"Bubbles": bubbles(r),
		"First":   first(r),
		"Table":   table,
	})
	if err != nil {
		return fmt.Errorf("slackbench: write the report: %w", err)
	}
	return nil
}

// leastShare is where the axis of bubbles begins, which is logarithmic: less of compute is as good as none.
const leastShare = 1e-4

// bubbles shows the bubble of each order over the hit rate.
func bubbles(r *Result) plot.Plot {
	most := 1.0
	for i := range r.Rows {
		for _, o := range orders {
			most = max(most, o.of(&r.Rows[i]).Share)
		}
	}
	from, to := math.Log10(leastShare), math.Ceil(math.Log10(most))
	p := byHitRate(r, func(f *Figures) float64 { return (math.Log10(max(f.Share, leastShare)) - from) / (to - from) },
		func(f *Figures) string { return fmt.Sprintf("%.3g %% of compute", 100*f.Share) })
	for e := from; e <= to; e++ {
		p.AddYTick(p.Y((e-from)/(to-from)), fmt.Sprintf("%.4g %%", 100*math.Pow(10, e)))
	}
	return p
}

// first shows the time to the first token of each order over the hit rate.
func first(r *Result) plot.Plot {
	most := 0.0
	for i := range r.Rows {
		for _, o := range orders {
			most = max(most, o.of(&r.Rows[i]).TTFT)
		}
	}
	top, step := plot.Scale(most)
	p := byHitRate(r, func(f *Figures) float64 { return f.TTFT / top }, func(f *Figures) string { return fmt.Sprintf("%.4g ms", f.TTFT) })
	for v := 0.0; v <= top+step/2; v += step {
		p.AddYTick(p.Y(v/top), fmt.Sprintf("%g ms", v))
	}
	return p
}

// byHitRate draws a curve for each order, through the value of each row, a share of the axis.
func byHitRate(r *Result, value func(*Figures) float64, text func(*Figures) string) plot.Plot {
	p := plot.New("", plot.WideWidth, 300, 64)
	p.XLabel = "hit rate"
	for i := range 11 {
		p.AddXTick(p.X(float64(i)/10), plot.Percent(float64(i)/10, 0.1))
	}
	if r.IOBound < 1 {
		p.AddLine(p.X(r.IOBound), p.Top, p.X(r.IOBound), p.Bottom, "limit", fmt.Sprintf("bound by I/O from %.1f %%", 100*r.IOBound))
	}
	for _, o := range orders {
		points, title := make([][2]float64, len(r.Rows)), o.Name
		for i := range r.Rows {
			f := o.of(&r.Rows[i])
			points[i] = [2]float64{r.Rows[i].Hit, value(f)}
			title += fmt.Sprintf("\n%.4g %%: %s", 100*r.Rows[i].Hit, text(f))
		}
		p.AddCurve(points, o.Class, title)
	}
	return p
}
