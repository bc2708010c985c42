package replay

import (
	"fmt"
	"math"
	"strings"

	"cascadekv/internal/plot"
)

// bars shows hits by tier, one bar per run, and what no cache could exceed.
func bars(results []Result, tiers []string) plot.Plot {
	const row = 34
	p := plot.New("", plot.WideWidth, float64(len(results))*row+46, 96)
	top := 0.0
	for _, r := range results {
		top = max(top, r.HitRatioBlocks, r.UnlimitedHitRatio)
	}
	top, step := plot.Scale(top)
	for v := 0.0; v <= top+step/2; v += step {
		p.AddXTick(p.X(v/top), plot.Percent(v, step))
	}
	p.XLabel = "share of all blocks asked for"
	for i, r := range results {
		y, from := p.Top+float64(i)*row+5, 0.0
		name := runName(results, i)
		p.AddLabel(y+row/2-1, name)
		for j, tier := range tiers {
			t := r.Tiers[tier]
			x := p.X(from / top)
			from += t.HitRatio
			p.AddRect(x, y, plot.Round(p.X(from/top)-x), row-10, class("t", j),
				fmt.Sprintf("%s, %s: %s of blocks, %s hits, %s", name, tier, share(t.HitRatio), count(t.Hits), or(size(t.Bytes), "0 B")))
		}
		limit := p.X(r.UnlimitedHitRatio / top)
		p.AddLine(limit, y-4, limit, y+row-6, "limit", "unlimited capacity: "+share(r.UnlimitedHitRatio))
	}
	return p
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
func area(r Result, name string, tiers []string, most, width float64) plot.Plot {
	p := plot.New(name, width, plot.SmallHeight, 44)
	top, step := plot.Scale(most)
	for v := 0.0; v <= top+step/2; v += step {
		p.AddYTick(p.Y(v/top), plot.Percent(v, step))
	}
	p.XLabel = "requests"
	if len(r.Series) == 0 {
		return p
	}
	last := float64(r.Series[len(r.Series)-1].Requests)
	for v, step := 0.0, plot.CountStep(last); v <= last; v += step {
		p.AddXTick(p.X(v/last), count(int64(v)))
	}
	// A point stands for its stretch, so it is drawn as a step over it.
	base := make([]float64, len(r.Series))
	for j, tier := range tiers {
		var up, down []string
		from := 0.0
		for i, pt := range r.Series {
			x0, x1 := p.X(from/last), p.X(float64(pt.Requests)/last)
			from = float64(pt.Requests)
			low := base[i]
			base[i] += ratio(pt.Hits[tier], pt.Blocks)
			up = append(up, fmt.Sprintf("%g,%g %g,%g", x0, p.Y(base[i]/top), x1, p.Y(base[i]/top)))
			down = append(down, fmt.Sprintf("%g,%g %g,%g", x1, p.Y(low/top), x0, p.Y(low/top)))
		}
		for i, k := 0, len(down)-1; i < k; i, k = i+1, k-1 {
			down[i], down[k] = down[k], down[i]
		}
		d := "M" + strings.Join(up, " L") + " L" + strings.Join(down, " L") + "Z"
		p.Paths = append(p.Paths, plot.Path{D: plot.Attr(d), Class: class("t", j)})
	}
	p.Rects = hovers(&p, r, tiers)
	return p
}

// hovers covers each stretch of an area with an invisible box that shows its values.
func hovers(p *plot.Plot, r Result, tiers []string) []plot.Rect {
	var boxes []plot.Rect
	from, last := 0, float64(r.Series[len(r.Series)-1].Requests)
	for _, pt := range r.Series {
		var text strings.Builder
		fmt.Fprintf(&text, "requests %s to %s, %s blocks", count(int64(from+1)), count(int64(pt.Requests)), count(pt.Blocks))
		for _, tier := range tiers {
			fmt.Fprintf(&text, "\n%s: %s", tier, share(ratio(pt.Hits[tier], pt.Blocks)))
		}
		x := p.X(float64(from) / last)
		boxes = append(boxes, plot.Rect{X: x, Y: p.Top, W: plot.Round(p.X(float64(pt.Requests)/last) - x), H: p.Bottom - p.Top, Class: "hover", Title: text.String()})
		from = pt.Requests
	}
	return boxes
}

// curves shows how an operation's times are distributed, a curve per run, over
// a logarithmic axis; false when no run has any.
func curves(results []Result, name string, of func(Result) Latency) (plot.Plot, bool) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, r := range results {
		for _, us := range of(r).Curve {
			us = max(us, 1e-3)
			low, high = min(low, us), max(high, us)
		}
	}
	if math.IsInf(low, 1) {
		return plot.Plot{}, false
	}
	from, to := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	to = max(to, from+1)
	p := plot.New(name, plot.SmallWidth, plot.SmallHeight, 44)
	p.XLabel = "time of one request's " + name
	for v := 0.0; v <= 1; v += 0.25 {
		p.AddYTick(p.Y(v), plot.Percent(v, 0.25))
	}
	for e := from; e <= to; e += 1 + math.Floor((to-from)/6) { // more labels would touch
		p.AddXTick(p.X((e-from)/(to-from)), decade(e))
	}
	for i, r := range results {
		l := of(r)
		if len(l.Curve) != len(CurveShares) {
			continue
		}
		var points []string
		for k, us := range l.Curve {
			x := (math.Log10(max(us, 1e-3)) - from) / (to - from)
			points = append(points, fmt.Sprintf("%g,%g", p.X(x), p.Y(CurveShares[k])))
		}
		p.Paths = append(p.Paths, plot.Path{D: plot.Attr("M" + strings.Join(points, " L")), Class: class("r", i),
			Title: fmt.Sprintf("%s: p50 %s, p90 %s, p99 %s, longest %s, %s requests",
				runName(results, i), micros(l.P50), micros(l.P90), micros(l.P99), micros(l.Max), count(int64(l.Count)))})
	}
	return p, true
}

// decade names a power of ten of microseconds.
func decade(e float64) string {
	return strings.NewReplacer(".0 ", " ", ".00 ", " ").Replace(micros(math.Pow(10, e)))
}
