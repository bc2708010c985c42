package replay

import (
	_ "embed"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"cascadekv/internal/plot"
	"cascadekv/internal/trace/stats"
)

//go:embed stats.html
var statsText string

var statsPage = plot.Page(statsText)

// StatsTable returns the figures of a trace as rows of a name and a text.
func StatsTable(s *stats.Stats) [][]string {
	var ages []string
	for _, a := range s.AgeShares {
		ages = append(ages, fmt.Sprintf("%s within %s", share(a.Share), span(1000*a.Seconds)))
	}
	most := int64(0)
	for _, w := range s.Windows {
		most = max(most, w.Blocks)
	}
	rows := [][]string{
		{"requests", fmt.Sprintf("%s in %s", count(int64(s.Requests)), span(s.Milliseconds))},
		{"blocks", fmt.Sprintf("%s, of which %s distinct", count(s.Blocks), count(s.UniqueBlocks))},
		{"dedup ratio", fmt.Sprintf("%.3f", s.DedupRatio)},
		{"ideal hits", fmt.Sprintf("%s of blocks, %s of tokens, in a cache without limits", share(s.HitRatioBlocks), share(s.HitRatioTokens))},
		{"touched once", fmt.Sprintf("%s of distinct blocks", share(s.OnceShare))},
		{"reuse distance", fmt.Sprintf("p10 %s, p50 %s, p90 %s, p99 %s, most %s distinct blocks",
			count(s.Distance.P10), count(s.Distance.P50), count(s.Distance.P90), count(s.Distance.P99), count(s.Distance.Max))},
		{"reuse age", strings.Join(ages[:len(ages)/2], ", ")},
		{"", strings.Join(ages[len(ages)/2:], ", ")},
		{"working set", fmt.Sprintf("at most %s distinct blocks in %s", count(most), span(int64(1000*s.WindowSeconds)))},
	}
	if one := s.Sessions; one != nil {
		rows = append(rows, []string{"sessions", fmt.Sprintf("%s, of %.1f requests (p90 %s, most %s); gaps p50 %s, p90 %s", count(int64(one.Count)),
			one.Turns.Mean, count(one.Turns.P90), count(one.Turns.Max), span(one.GapMS.P50), span(one.GapMS.P90))})
	}
	if s.Reparented > 0 {
		rows = append(rows, []string{"reparented", count(s.Reparented) + " touches of blocks behind different blocks: not a trace of prefixes, its hits mean little"})
	}
	return rows
}

// StatsReport writes the figures of the trace name as one HTML page that needs
// nothing else: the table, histograms of reuse, and the working set over time.
func StatsReport(w io.Writer, name string, s *stats.Stats) error {
	err := statsPage.Execute(w, map[string]any{
		"Trace": name, "Title": filepath.Base(name), "Head": fmt.Sprintf("%s requests, %s blocks", count(int64(s.Requests)), count(s.Blocks)),
		"Table":      StatsTable(s),
		"Distance":   reuses(s.Distance, "distinct blocks", count),
		"Age":        reuses(s.Age, "age", span),
		"Window":     span(int64(1000 * s.WindowSeconds)),
		"WorkingSet": workingSet(s),
	})
	if err != nil {
		return fmt.Errorf("replay: write the report: %w", err)
	}
	return nil
}

// span formats milliseconds.
func span(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	}
	text := d.String()
	if short, whole := strings.CutSuffix(text, "m0s"); whole {
		text = short + "m"
	}
	if short, whole := strings.CutSuffix(text, "h0m"); whole {
		text = short + "h"
	}
	return text
}

// reuses shows a distribution: a bar for each bin, and the share up to it.
func reuses(d stats.Distribution, what string, text func(int64) string) plot.Plot {
	p := plot.New("", plot.WideWidth, plot.SmallHeight, 52)
	p.XLabel = what
	for v := 0.0; v <= 1; v += 0.25 {
		p.AddYTick(p.Y(v), plot.Percent(v, 0.25))
	}
	total := int64(0)
	for _, b := range d.Bins {
		total += b.Count
	}
	if total == 0 {
		return p
	}
	width := 1 / float64(len(d.Bins))
	every, sofar := 1+len(d.Bins)/10, int64(0)
	points := []string{fmt.Sprintf("%g,%g", p.X(0), p.Y(0))}
	for i, b := range d.Bins {
		from := int64(0)
		if i > 0 {
			from = d.Bins[i-1].Most + 1
		}
		sofar += b.Count
		left, right := p.X(float64(i)*width), p.X(float64(i+1)*width)
		top := p.Y(ratio(b.Count, total))
		p.AddRect(left, top, plot.Round(max(0, right-left-1)), plot.Round(p.Bottom-top), "t0", fmt.Sprintf("%s to %s: %s of reuses, %s up to here",
			text(from), text(b.Most), share(ratio(b.Count, total)), share(ratio(sofar, total))))
		points = append(points, fmt.Sprintf("%g,%g", right, p.Y(ratio(sofar, total))))
		if i%every == 0 {
			p.AddXTick(right, text(b.Most+1))
		}
	}
	p.Paths = append(p.Paths, plot.Path{D: plot.Attr("M" + strings.Join(points, " L")), Class: "r1", Title: "share up to here"})
	return p
}

// maxColumns bounds the bars of a plot over time: more would be thinner than a pixel.
const maxColumns = 400

// workingSet shows the distinct blocks of each window; where there are more
// windows than columns, the largest of those that share one.
func workingSet(s *stats.Stats) plot.Plot {
	p := plot.New("", plot.WideWidth, plot.SmallHeight, 72)
	p.XLabel = "time"
	if len(s.Windows) == 0 {
		return p
	}
	most, begin := int64(1), s.Windows[0].Second
	for _, w := range s.Windows {
		most = max(most, w.Blocks)
	}
	length := s.Windows[len(s.Windows)-1].Second + s.WindowSeconds - begin
	for v, step := 0.0, plot.CountStep(float64(most)); v <= float64(most); v += step {
		p.AddYTick(p.Y(v/float64(most)), count(int64(v)))
	}
	for i := range 6 {
		p.AddXTick(p.X(float64(i)/5), span(int64(1000*length*float64(i)/5)))
	}
	together := 1 + (len(s.Windows)-1)/maxColumns
	for i := 0; i < len(s.Windows); i += together {
		w := s.Windows[i]
		for _, other := range s.Windows[i:min(i+together, len(s.Windows))] {
			w.Blocks, w.New = max(w.Blocks, other.Blocks), max(w.New, other.New)
		}
		end := s.Windows[min(i+together, len(s.Windows))-1].Second + s.WindowSeconds
		left, right := p.X((w.Second-begin)/length), p.X((end-begin)/length)
		title := fmt.Sprintf("from %s: %s blocks, %s of them for the first time", span(int64(1000*(w.Second-begin))), count(w.Blocks), count(w.New))
		for _, bar := range []struct {
			blocks int64
			class  string
		}{{w.Blocks, "t0"}, {w.New, "t1"}} {
			top := p.Y(float64(bar.blocks) / float64(most))
			p.AddRect(left, top, plot.Round(right-left), plot.Round(p.Bottom-top), bar.class, title)
		}
	}
	return p
}
