package replay

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// plot is one figure: its frame, axes and marks.
type plot struct {
	Title          string
	W, H           float64 // of the viewBox
	Left, Top      float64 // of the area inside the axes
	Right, Bottom  float64
	XTicks, YTicks []tick
	XLabel         string
	Rects          []rect
	Paths          []path
	Lines          []rule
	Labels         []tick // beside the rows of a bar chart
}

type tick struct {
	At   float64
	Text string
}

type rect struct {
	X, Y, W, H   float64
	Class, Title string
}

// path is a curve or a filled area; D is made of numbers and letters only.
type path struct {
	D            template.HTMLAttr
	Class, Title string
}

// rule is a straight line that marks a value.
type rule struct {
	X1, Y1, X2, Y2 float64
	Class, Title   string
}

func newPlot(title string, w, h, left float64) plot {
	return plot{Title: title, W: w, H: h, Left: left, Top: 10, Right: w - 24, Bottom: h - 34}
}

// Small plots stand three in a row of the page, at about their own size, so
// that their text is as large as the page's.
const smallWidth, smallHeight = 320, 210

// wideWidth is that of a plot that has the row for itself.
const wideWidth = 900

// x and y map 0..1 to the inside of the axes.
func (p *plot) x(share float64) float64 { return round(p.Left + share*(p.Right-p.Left)) }
func (p *plot) y(share float64) float64 { return round(p.Bottom - share*(p.Bottom-p.Top)) }

// round keeps the page small: a hundredth of a pixel is nothing.
func round(v float64) float64 { return math.Round(v*100) / 100 }

// bars shows hits by tier, one bar per run, and what no cache could exceed.
func bars(results []Result, tiers []string) plot {
	const row = 34
	p := newPlot("", wideWidth, float64(len(results))*row+46, 96)
	top := 0.0
	for _, r := range results {
		top = max(top, r.HitRatioBlocks, r.UnlimitedHitRatio)
	}
	top, step := scale(top)
	for v := 0.0; v <= top+step/2; v += step {
		p.XTicks = append(p.XTicks, tick{p.x(v / top), percent(v, step)})
	}
	p.XLabel = "share of all blocks asked for"
	for i, r := range results {
		y, from := p.Top+float64(i)*row+5, 0.0
		name := runName(results, i)
		p.Labels = append(p.Labels, tick{y + row/2 - 1, name})
		for j, tier := range tiers {
			t := r.Tiers[tier]
			x := p.x(from / top)
			from += t.HitRatio
			p.Rects = append(p.Rects, rect{x, y, round(p.x(from/top) - x), row - 10, class("t", j),
				fmt.Sprintf("%s, %s: %s of blocks, %s hits, %s", name, tier, share(t.HitRatio), count(t.Hits), or(size(t.Bytes), "0 B"))})
		}
		limit := p.x(r.UnlimitedHitRatio / top)
		p.Lines = append(p.Lines, rule{limit, y - 4, limit, y + row - 6, "limit", "unlimited capacity: " + share(r.UnlimitedHitRatio)})
	}
	return p
}

// scale returns a round upper end for an axis, of shares or of seconds, and the step of its ticks,
// six at most.
func scale(most float64) (top, step float64) {
	for power := -4; ; power++ {
		for _, m := range []float64{1, 2, 5} {
			if step := m * math.Pow10(power); most <= 6*step {
				return step * max(1, math.Ceil(most/step-1e-9)), step
			}
		}
	}
}

// countStep is a round distance of ticks that divides so many into five at most.
func countStep(last float64) float64 {
	for step := 1.0; ; step *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if last <= 5*m*step {
				return m * step
			}
		}
	}
}

func percent(v, step float64) string {
	digits := max(0, int(math.Ceil(-math.Log10(step)-2-1e-9)))
	return fmt.Sprintf("%.*f %%", digits, 100*v)
}

// highest returns the highest share of hits of any stretch.
func highest(results []Result) (most float64) {
	for _, r := range results {
		for _, pt := range r.Series {
			hits := int64(0)
			for _, n := range pt.Hits {
				hits += n
			}
			most = max(most, ratio(hits, pt.Blocks))
		}
	}
	return most
}

// area shows a run's hits by tier over its requests, stacked. most is what the
// axis must reach, the same for all runs that are compared.
func area(r Result, name string, tiers []string, most, width float64) plot {
	p := newPlot(name, width, smallHeight, 44)
	top, step := scale(most)
	for v := 0.0; v <= top+step/2; v += step {
		p.YTicks = append(p.YTicks, tick{p.y(v / top), percent(v, step)})
	}
	p.XLabel = "requests"
	if len(r.Series) == 0 {
		return p
	}
	last := float64(r.Series[len(r.Series)-1].Requests)
	for v, step := 0.0, countStep(last); v <= last; v += step {
		p.XTicks = append(p.XTicks, tick{p.x(v / last), count(int64(v))})
	}
	// A point stands for its stretch, so it is drawn as a step over it.
	base := make([]float64, len(r.Series))
	for j, tier := range tiers {
		var up, down []string
		from := 0.0
		for i, pt := range r.Series {
			x0, x1 := p.x(from/last), p.x(float64(pt.Requests)/last)
			from = float64(pt.Requests)
			low := base[i]
			base[i] += ratio(pt.Hits[tier], pt.Blocks)
			up = append(up, fmt.Sprintf("%g,%g %g,%g", x0, p.y(base[i]/top), x1, p.y(base[i]/top)))
			down = append(down, fmt.Sprintf("%g,%g %g,%g", x1, p.y(low/top), x0, p.y(low/top)))
		}
		for i, k := 0, len(down)-1; i < k; i, k = i+1, k-1 {
			down[i], down[k] = down[k], down[i]
		}
		d := "M" + strings.Join(up, " L") + " L" + strings.Join(down, " L") + "Z"
		p.Paths = append(p.Paths, path{D: attr(d), Class: class("t", j)})
	}
	p.Rects = hovers(&p, r, tiers)
	return p
}

// hovers covers each stretch of an area with an invisible box that shows its values.
func hovers(p *plot, r Result, tiers []string) []rect {
	var boxes []rect
	from, last := 0, float64(r.Series[len(r.Series)-1].Requests)
	for _, pt := range r.Series {
		var text strings.Builder
		fmt.Fprintf(&text, "requests %s to %s, %s blocks", count(int64(from+1)), count(int64(pt.Requests)), count(pt.Blocks))
		for _, tier := range tiers {
			fmt.Fprintf(&text, "\n%s: %s", tier, share(ratio(pt.Hits[tier], pt.Blocks)))
		}
		x := p.x(float64(from) / last)
		boxes = append(boxes, rect{x, p.Top, round(p.x(float64(pt.Requests)/last) - x), p.Bottom - p.Top, "hover", text.String()})
		from = pt.Requests
	}
	return boxes
}

// curves shows how an operation's times are distributed, a curve per run, over
// a logarithmic axis; false when no run has any.
func curves(results []Result, name string, of func(Result) Latency) (plot, bool) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, r := range results {
		for _, us := range of(r).Curve {
			us = max(us, 1e-3)
			low, high = min(low, us), max(high, us)
		}
	}
	if math.IsInf(low, 1) {
		return plot{}, false
	}
	from, to := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	to = max(to, from+1)
	p := newPlot(name, smallWidth, smallHeight, 44)
	p.XLabel = "time of one request's " + name
	for v := 0.0; v <= 1; v += 0.25 {
		p.YTicks = append(p.YTicks, tick{p.y(v), percent(v, 0.25)})
	}
	for e := from; e <= to; e += 1 + math.Floor((to-from)/6) { // more labels would touch
		p.XTicks = append(p.XTicks, tick{p.x((e - from) / (to - from)), decade(e)})
	}
	for i, r := range results {
		l := of(r)
		if len(l.Curve) != len(CurveShares) {
			continue
		}
		var points []string
		for k, us := range l.Curve {
			x := (math.Log10(max(us, 1e-3)) - from) / (to - from)
			points = append(points, fmt.Sprintf("%g,%g", p.x(x), p.y(CurveShares[k])))
		}
		p.Paths = append(p.Paths, path{D: attr("M" + strings.Join(points, " L")), Class: class("r", i),
			Title: fmt.Sprintf("%s: p50 %s, p90 %s, p99 %s, longest %s, %s requests",
				runName(results, i), micros(l.P50), micros(l.P90), micros(l.P99), micros(l.Max), count(int64(l.Count)))})
	}
	return p, true
}

// decade names a power of ten of microseconds.
func decade(e float64) string {
	return strings.NewReplacer(".0 ", " ", ".00 ", " ").Replace(micros(math.Pow(10, e)))
}

// attr makes the attribute of a path's geometry. html/template would escape
// plus signs of exponents if it were a string.
func attr(d string) template.HTMLAttr { return template.HTMLAttr(`d="` + d + `"`) }
