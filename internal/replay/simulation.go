package replay

import (
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cascadekv/internal/plot"
	"cascadekv/internal/simulate"
)

//go:embed simulation.html
var simulationText string

var simulationPage = plot.Page(simulationText)

// SimulationTable writes a simulation for people, one row per policy.
func SimulationTable(w io.Writer, r simulate.Result) error {
	fmt.Fprintf(w, "%s\n\n", simulationHead(r))
	err := writeRows(w, hitRows(r))
	if r.TTFT != nil && err == nil {
		fmt.Fprintf(w, "\ntime to first token, p50 / p90 / p99, modelled: %s\n\n", modelWords(r.TTFT))
		err = writeRows(w, timeRows(r))
	}
	if err != nil {
		return fmt.Errorf("replay: write the table: %w", err)
	}
	return nil
}

// SimulationReport writes a simulation as one HTML page that needs nothing else: plots over
// capacity, readable in light and dark, and the table.
func SimulationReport(w io.Writer, r simulate.Result) error {
	name := or(r.Trace, "a trace")
	p := simulationParts{Trace: name, Title: filepath.Base(name), Head: simulationHead(r), Table: hitRows(r)}
	for i, policy := range r.Order {
		p.Keys = append(p.Keys, key{policy, policyClass(r, i)})
	}
	p.Hits = overCapacity(r, "", plot.WideWidth, 360, func(policy string, i int) float64 { return r.Policies[policy][i] },
		func(v, step float64) string { return plot.Percent(v, step) })
	if r.TTFT != nil {
		p.Model, p.TimeTable = modelWords(r.TTFT), timeRows(r)
		for _, q := range quantiles {
			p.Times = append(p.Times, overCapacity(r, q.name, plot.SmallWidth, plot.SmallHeight,
				func(policy string, i int) float64 { return q.of(r.TTFT.Policies[policy][i]) },
				func(v, _ float64) string { return strings.Replace(micros(v*1e6), ".00 ", " ", 1) }))
		}
	}
	if err := simulationPage.Execute(w, p); err != nil {
		return fmt.Errorf("replay: write the report: %w", err)
	}
	return nil
}

// simulationParts are what the page shows.
type simulationParts struct {
	Trace, Title, Head string
	Keys               []key
	Hits               plot.Plot
	Table              [][]string
	Model              string
	Times              []plot.Plot
	TimeTable          [][]string
}

var quantiles = []struct {
	name string
	of   func(simulate.Quantiles) float64
}{
	{"p50", func(q simulate.Quantiles) float64 { return q.P50 }},
	{"p90", func(q simulate.Quantiles) float64 { return q.P90 }},
	{"p99", func(q simulate.Quantiles) float64 { return q.P99 }},
}

func simulationHead(r simulate.Result) string {
	return fmt.Sprintf("%s requests, %s blocks, %s distinct; an unlimited cache hits %s of the blocks",
		count(int64(r.Requests)), count(r.Blocks), count(int64(r.UniqueBlocks)), share(r.UnlimitedHitRatio))
}

func modelWords(t *simulate.TTFT) string {
	latency := time.Duration(t.LoadLatencySeconds * float64(time.Second))
	waiting := "no request waits for another"
	if t.Engines > 0 {
		waiting = fmt.Sprintf("requests wait for one of %s engines", count(int64(t.Engines)))
	}
	return fmt.Sprintf("%s tokens/s prefill; loads at %s/s after %s; %s B per token; %s",
		count(int64(t.PrefillTokensPerSecond)), size(int64(t.LoadBytesPerSecond)), latency, count(int64(t.BytesPerToken)), waiting)
}

// hitRows has the names of columns first.
func hitRows(r simulate.Result) [][]string {
	head := capacityCells(r, "hits at")
	rows := [][]string{append(head, "hits / LRU", "LRU→MIN closed", "cache for LRU's hits")}
	for _, policy := range r.Order {
		cells := []string{policy}
		for _, h := range r.Policies[policy] {
			cells = append(cells, share(h))
		}
		c := r.AgainstLRU[policy]
		rows = append(rows, append(cells, fmt.Sprintf("%.3f", c.HitsOverLRU), fmt.Sprintf("%.3f", c.GapClosed), fmt.Sprintf("%.2f", c.MeanCacheForLRUHits)))
	}
	return rows
}

func timeRows(r simulate.Result) [][]string {
	rows := [][]string{append(capacityCells(r, "at"), "p90 / LRU's")}
	for _, policy := range r.Order {
		cells := []string{policy}
		for _, q := range r.TTFT.Policies[policy] {
			cells = append(cells, micros(q.P50*1e6)+" / "+micros(q.P90*1e6)+" / "+micros(q.P99*1e6))
		}
		mean := 0.0
		for _, over := range r.TTFT.P90OverLRU[policy] {
			mean += over / float64(len(r.Capacities))
		}
		rows = append(rows, append(cells, fmt.Sprintf("%.3f", mean)))
	}
	return rows
}

func capacityCells(r simulate.Result, what string) []string {
	cells := []string{what}
	for _, c := range r.Capacities {
		cells = append(cells, capacity(c))
	}
	return cells
}

// capacity names a share of the distinct blocks.
func capacity(c float64) string { return fmt.Sprintf("%.4g %%", 100*c) }

// policyClass is the i-th of nine colours; MIN is no policy that could be had, and is dashed.
func policyClass(r simulate.Result, i int) string {
	if r.Order[i] == simulate.Min {
		return "limit"
	}
	return fmt.Sprintf("r%d", i%9)
}

// overCapacity shows a figure of all policies over the capacities, on a logarithmic axis.
func overCapacity(r simulate.Result, title string, width, height float64, of func(policy string, i int) float64, label func(v, step float64) string) plot.Plot {
	p := plot.New(title, width, height, 52)
	p.XLabel = "capacity, as a share of the distinct blocks"
	most := 0.0
	for _, policy := range r.Order {
		for i := range r.Capacities {
			most = max(most, of(policy, i))
		}
	}
	top, step := plot.Scale(most)
	for v := 0.0; v <= top+step/2; v += step {
		p.AddYTick(p.Y(v/top), label(v, step))
	}
	order := make([]int, len(r.Capacities))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(r.Capacities[a], r.Capacities[b]) })
	at := capacityAxis(&p, r.Capacities)
	for i, policy := range r.Order {
		var points []string
		var values strings.Builder
		for _, k := range order {
			v := of(policy, k)
			points = append(points, fmt.Sprintf("%g,%g", at(r.Capacities[k]), p.Y(v/top)))
			fmt.Fprintf(&values, "\n%s: %s", capacity(r.Capacities[k]), label(v, step/1000))
		}
		if len(points) == 1 { // a line from edge to edge
			points = []string{fmt.Sprintf("%g,%g", p.Left, p.Y(of(policy, 0)/top)), fmt.Sprintf("%g,%g", p.Right, p.Y(of(policy, 0)/top))}
		}
		p.Paths = append(p.Paths, plot.Path{D: plot.Attr("M" + strings.Join(points, " L")), Class: policyClass(r, i), Title: policy + values.String()})
	}
	return p
}

// capacityAxis labels the capacities that do not touch the label before, and returns where
// one lies.
func capacityAxis(p *plot.Plot, capacities []float64) (at func(float64) float64) {
	low, high := math.Log(slices.Min(capacities)), math.Log(slices.Max(capacities))
	at = func(c float64) float64 {
		if low == high {
			return p.X(0.5)
		}
		return p.X((math.Log(c) - low) / (high - low))
	}
	const labelWidth = 42
	last := math.Inf(-1)
	for _, c := range slices.Sorted(slices.Values(capacities)) {
		if x := at(c); x-last >= labelWidth {
			p.AddXTick(x, capacity(c))
			last = x
		}
	}
	return at
}
