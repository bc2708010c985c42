package replay

import (
	_ "embed"
	"fmt"
	"io"
	"path/filepath"

	"cascadekv/internal/plot"
)

//go:embed report.html
var reportText string

var reportPage = plot.Page(reportText)

// Report writes the results as one HTML page that needs nothing else: a table
// and plots, readable in light and dark, with values under the pointer.
func Report(w io.Writer, results []Result) error {
	if err := reportPage.Execute(w, newPage(results)); err != nil {
		return fmt.Errorf("replay: write the report: %w", err)
	}
	return nil
}

// page is what the template shows. Coordinates are in units of the SVG's
// viewBox and are plain numbers, so the template escapes nothing away.
type page struct {
	Trace  string // as the caller names it
	Title  string // without folders
	Head   string // one sentence
	Wrong  bool
	Table  []tableRow
	Tiers  []key
	Bars   plot.Plot
	Areas  []plot.Plot
	Single bool // one run, whose area is as wide as the page
	Curves []plot.Plot
	Runs   []key
}

type tableRow struct {
	Name, Hint string
	Head       bool
	Cells      []tableCell
}

type tableCell struct {
	Text string
	Bad  bool
}

// key explains a colour; Class selects it in the style sheet.
type key struct{ Name, Class string }

func newPage(results []Result) page {
	var p page
	for i, l := range rows(results) {
		r := tableRow{Name: l.name, Hint: l.hint, Head: i == 0}
		for j, c := range l.cells {
			r.Cells = append(r.Cells, tableCell{c, l.bad[j]})
		}
		p.Table = append(p.Table, r)
	}
	tiers := tierNames(results)
	for i, name := range tiers {
		p.Tiers = append(p.Tiers, key{name, class("t", i)})
	}
	width := float64(plot.SmallWidth)
	if p.Single = len(results) == 1; p.Single {
		width = plot.WideWidth
	}
	for i, r := range results {
		p.Wrong = p.Wrong || r.WrongBytes != 0
		p.Runs = append(p.Runs, key{runName(results, i), class("r", i)})
		p.Areas = append(p.Areas, area(r, runName(results, i), tiers, highest(results), width))
	}
	if len(results) > 0 {
		r := results[0]
		p.Trace = or(r.Trace, "a trace")
		p.Title = filepath.Base(p.Trace)
		p.Head = fmt.Sprintf("%s requests, %s blocks of %s, %s distinct",
			count(int64(r.Requests)), count(r.Blocks), size(int64(r.BlockBytes)), count(r.UniqueBlocks))
	}
	p.Bars = bars(results, tiers)
	for _, op := range operations {
		if c, ok := curves(results, op.name, op.of); ok {
			p.Curves = append(p.Curves, c)
		}
	}
	return p
}

// class names the i-th colour of a family; there are six of each.
func class(family string, i int) string { return fmt.Sprintf("%s%d", family, i%6) }

// runName distinguishes runs: by policy, and by number where that is not enough.
func runName(results []Result, i int) string {
	name := or(results[i].Policy, "run")
	for j := range results {
		if j != i && results[j].Policy == results[i].Policy {
			return fmt.Sprintf("%s #%d", name, i+1)
		}
	}
	return name
}
