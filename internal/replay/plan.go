package replay

import (
	_ "embed"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"

	"cascadekv/internal/plan"
	"cascadekv/internal/plot"
)

//go:embed plan.html
var planText string

var planPage = plot.Page(planText)

// PlanTable writes a plan for people: what was chosen, and what no other beats.
func PlanTable(w io.Writer, r *plan.Result) error {
	fmt.Fprintf(w, "%s\n%s\n\n%s\n\n", planHead(r), planSetting(r), planVerdict(r))
	err := writeRows(w, levelRows(r))
	fmt.Fprintln(w)
	if err == nil {
		err = writeRows(w, againstRecompute(r))
	}
	fmt.Fprintf(w, "\n%s:\n\n", planFrontier)
	if err == nil {
		err = writeRows(w, frontierRows(r))
	}
	if err != nil {
		return fmt.Errorf("replay: write the table: %w", err)
	}
	return nil
}

const planFrontier = "Configurations that no other beats in cost, P90 and hits together, the cheapest first"

// PlanReport writes a plan as one HTML page that needs nothing else.
func PlanReport(w io.Writer, r *plan.Result) error {
	name := or(r.Trace, "a trace")
	var keys []key
	for i, l := range r.Levels {
		keys = append(keys, key{l.Name, class("t", i)})
	}
	err := planPage.Execute(w, map[string]any{
		"Trace": name, "Title": filepath.Base(name), "Head": planHead(r), "Setting": planSetting(r), "Verdict": planVerdict(r), "Met": r.Met,
		"Levels": levelRows(r), "Against": againstRecompute(r), "Frontier": frontierRows(r), "About": planFrontier,
		"Keys": keys, "Costs": costs(r), "Hits": levelBars(r),
	})
	if err != nil {
		return fmt.Errorf("replay: write the report: %w", err)
	}
	return nil
}

func planHead(r *plan.Result) string {
	return fmt.Sprintf("%s requests in %s, %s blocks, %s distinct; an unlimited cache hits %s of the blocks", count(int64(r.Requests)),
		span(int64(1000*r.Seconds)), count(r.Blocks), count(int64(r.UniqueBlocks)), share(r.UnlimitedHitRatio))
}

func planSetting(r *plan.Result) string {
	model := "KV cache"
	if m := r.Model; m != nil {
		model = fmt.Sprintf("%s, %d layers of %d KV heads of %d numbers of %d B", m.Name, m.Layers, m.KVHeads, m.HeadDim, m.ElementBytes)
	}
	waiting := "no request waits for another"
	if r.Engines > 0 {
		waiting = fmt.Sprintf("%s engines", count(int64(r.Engines)))
	}
	return fmt.Sprintf("%s: %s B per token, %s a block; %s tokens/s prefill, %s; %s GPUs at $%g an hour", model, count(r.BytesPerToken), size(r.BlockBytes),
		count(int64(r.PrefillTokensPerSecond)), waiting, count(int64(r.GPUs)), r.GPUPrice)
}

// planVerdict says what was chosen, and what would help where that does not meet the target.
func planVerdict(r *plan.Result) string {
	var wants []string
	if p90 := r.Target.P90; p90 > 0 {
		wants = append(wants, "a P90 of "+p90.String())
	}
	if hits := r.Target.Hits; hits > 0 {
		wants = append(wants, share(hits)+" hits")
	}
	target := strings.Join(wants, " and ")
	switch {
	case target == "":
		return "The cheapest configuration (no target was given):"
	case r.Met:
		return "The cheapest configuration with " + target + ":"
	case r.Target.Hits > r.UnlimitedHitRatio:
		return fmt.Sprintf("No configuration has %s: not even an unlimited cache hits more than %s. Nearest comes:", target, share(r.UnlimitedHitRatio))
	}
	return "No configuration has " + target + ". Nearest comes:"
}

// levelRows is the chosen configuration by level.
func levelRows(r *plan.Result) [][]string {
	rows := [][]string{{"level", "of all nodes", "hits", "written an hour"}}
	chosen := r.Configurations[r.Chosen]
	for _, l := range chosen.Levels {
		rows = append(rows, []string{l.Name, or(size(l.Bytes), "-"), share(l.HitRatio), or(size(int64(l.BytesPerHour)), "-")})
	}
	return append(rows, []string{"computed", "", share(float64(chosen.Recomputed) / float64(r.Blocks)), ""})
}

func againstRecompute(r *plan.Result) [][]string {
	rows := [][]string{{"", "TTFT p50", "p90", "p99", "tokens an hour", "$ an hour", "$ a million tokens"}}
	for _, one := range []struct {
		name string
		c    *plan.Configuration
	}{{"chosen", &r.Configurations[r.Chosen]}, {"all computed", &r.Recompute}} {
		row := []string{one.name}
		for _, q := range quantiles {
			row = append(row, micros(1e6*q.of(one.c.TTFT)))
		}
		rows = append(rows, append(row, count(int64(one.c.TokensPerHour)), dollars(one.c.DollarsPerHour), dollars(one.c.DollarsPerMillion)))
	}
	return rows
}

func frontierRows(r *plan.Result) [][]string {
	head := []string{""}
	for _, l := range r.Levels {
		head = append(head, l.Name)
	}
	last := r.Levels[len(r.Levels)-1].Name
	rows := [][]string{append(head, "hits", "p50", "p90", "p99", "to "+last+" an hour", "$ an hour", "$ a million tokens")}
	for i, c := range r.Configurations {
		if !c.Frontier && i != r.Chosen {
			continue
		}
		row := []string{""}
		if i == r.Chosen {
			row[0] = "→"
		}
		for _, l := range c.Levels {
			row = append(row, or(size(l.Bytes), "-"))
		}
		row = append(row, share(c.HitRatio))
		for _, q := range quantiles {
			row = append(row, micros(1e6*q.of(c.TTFT)))
		}
		written := c.Levels[len(c.Levels)-1].BytesPerHour
		rows = append(rows, append(row, or(size(int64(written)), "-"), dollars(c.DollarsPerHour), dollars(c.DollarsPerMillion)))
	}
	return rows
}

func dollars(x float64) string { return fmt.Sprintf("%.4g", x) }

// configurationName names what a configuration has of each level.
func configurationName(c *plan.Configuration) string {
	var parts []string
	for _, l := range c.Levels {
		parts = append(parts, l.Name+" "+or(size(l.Bytes), "0"))
	}
	return strings.Join(parts, ", ")
}

// costs shows the P90 of all configurations over what they cost, and the target.
func costs(r *plan.Result) plot.Plot {
	p := plot.New("", plot.WideWidth, 360, 72)
	p.XLabel = "$ a million tokens"
	low, high, fast, slow := math.Inf(1), 0.0, math.Inf(1), 0.0
	for _, c := range r.Configurations {
		low, high = min(low, c.DollarsPerMillion), max(high, c.DollarsPerMillion)
		fast, slow = min(fast, c.TTFT.P90), max(slow, c.TTFT.P90)
	}
	if target := r.Target.P90.Seconds(); target > 0 {
		fast, slow = min(fast, target), max(slow, target)
	}
	x := func(dollars float64) float64 {
		return p.X((dollars - low) / max(high-low, math.SmallestNonzeroFloat32))
	}
	from, to := math.Floor(math.Log10(fast)), math.Ceil(math.Log10(slow))
	to = max(to, from+1)
	y := func(seconds float64) float64 { return p.Y((math.Log10(seconds) - from) / (to - from)) }
	for e := from; e <= to; e++ {
		p.AddYTick(y(math.Pow(10, e)), decade(e+6))
	}
	ticks := 6
	if low == high {
		ticks = 1
	}
	for i := range ticks {
		at := low + (high-low)*float64(i)/5
		p.AddXTick(x(at), dollars(at))
	}
	for _, last := range []bool{false, true} { // what matters is drawn over what does not
		for i := range r.Configurations {
			c := &r.Configurations[i]
			if important := c.Frontier || i == r.Chosen; important == last {
				p.Rects = append(p.Rects, point(c, i == r.Chosen, x(c.DollarsPerMillion), y(c.TTFT.P90)))
			}
		}
	}
	if target := r.Target.P90; target > 0 {
		at := y(target.Seconds())
		p.AddLine(p.Left, at, p.Right, at, "limit", "target: "+target.String())
	}
	return p
}

// point is a configuration in the plot of costs.
func point(c *plan.Configuration, chosen bool, x, y float64) plot.Rect {
	half, colour := 3.0, "t5"
	switch {
	case chosen:
		half, colour = 6, "t1"
	case c.Frontier:
		half, colour = 4, "t0"
	}
	return plot.Rect{X: plot.Round(x - half), Y: plot.Round(y - half), W: 2 * half, H: 2 * half, Class: colour, Title: fmt.Sprintf("%s\n%s hits, p90 %s, $%s a million tokens",
		configurationName(c), share(c.HitRatio), micros(1e6*c.TTFT.P90), dollars(c.DollarsPerMillion))}
}

// levelBars shows the hits of each level, a bar for each configuration on the frontier.
func levelBars(r *plan.Result) plot.Plot {
	var shown []*plan.Configuration
	names := map[*plan.Configuration]string{}
	for i := range r.Configurations {
		if c := &r.Configurations[i]; c.Frontier || i == r.Chosen {
			shown = append(shown, c)
			if names[c] = "$" + dollars(c.DollarsPerMillion); i == r.Chosen {
				names[c] = "→ " + names[c]
			}
		}
	}
	const row = 28
	p := plot.New("", plot.WideWidth, float64(len(shown))*row+46, 96)
	p.XLabel = "share of all blocks asked for"
	top, step := plot.Scale(max(r.UnlimitedHitRatio, 0.01))
	for v := 0.0; v <= top+step/2; v += step {
		p.AddXTick(p.X(v/top), plot.Percent(v, step))
	}
	for i, c := range shown {
		y, from := p.Top+float64(i)*row+4, 0.0
		p.AddLabel(y+row/2, names[c])
		for j, l := range c.Levels {
			left := p.X(from / top)
			from += l.HitRatio
			p.AddRect(left, y, plot.Round(p.X(from/top)-left), row-8, class("t", j),
				fmt.Sprintf("%s\n%s: %s of blocks", configurationName(c), l.Name, share(l.HitRatio)))
		}
	}
	limit := p.X(r.UnlimitedHitRatio / top)
	p.AddLine(limit, p.Top, limit, p.Bottom, "limit", "unlimited capacity: "+share(r.UnlimitedHitRatio))
	return p
}
