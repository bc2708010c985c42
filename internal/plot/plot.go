package plot

import (
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"strings"
)

//go:embed plot.html
var text string

var base = template.Must(template.New("plot.html").Parse(text))

// Page returns the template of a page, which may use three more: "style", for its head; "plot", which shows a Plot; and "rows",
// a table of texts whose first row is its head. It panics where the text is no template.
func Page(text string) *template.Template {
	return template.Must(template.Must(base.Clone()).New("page").Parse(text))
}

// Plot is one figure: its frame, axes, bars, curves and lines.
type Plot struct {
	Title          string
	W, H           float64 // of the viewBox
	Left, Top      float64 // of the area inside the axes
	Right, Bottom  float64
	XTicks, YTicks []Tick
	XLabel         string
	Rects          []Rect
	Paths          []Path
	Lines          []Rule
	Labels         []Tick // beside the rows of a bar chart
}

// Tick is a text at a place of an axis.
type Tick struct {
	At   float64
	Text string
}

// Rect is a bar. Class is of the page's style; Title shows its value.
type Rect struct {
	X, Y, W, H   float64
	Class, Title string
}

// Path is a curve or a filled area; D is made of numbers and letters only.
type Path struct {
	D            template.HTMLAttr
	Class, Title string
}

// Rule is a straight line that marks a value.
type Rule struct {
	X1, Y1, X2, Y2 float64
	Class, Title   string
}

// New returns a figure that shows nothing yet, w by h, whose area begins left from its edge. All are units of the viewBox.
func New(title string, w, h, left float64) Plot {
	return Plot{Title: title, W: w, H: h, Left: left, Top: 10, Right: w - 24, Bottom: h - 34}
}

// SmallWidth and SmallHeight: small plots stand three in a row of the page, at about their own size, so
// that their text is as large as the page's.
const SmallWidth, SmallHeight = 320, 210

// WideWidth is that of a plot that has the row for itself.
const WideWidth = 900

// X maps a share of 0 to 1 to the area, from the left.
func (p *Plot) X(share float64) float64 { return Round(p.Left + share*(p.Right-p.Left)) }

// Y is X from the bottom.
func (p *Plot) Y(share float64) float64 { return Round(p.Bottom - share*(p.Bottom-p.Top)) }

// AddXTick adds a tick, at units of the viewBox, as the other methods that add do.
func (p *Plot) AddXTick(at float64, text string) { p.XTicks = append(p.XTicks, Tick{at, text}) }

// AddYTick adds a tick.
func (p *Plot) AddYTick(at float64, text string) { p.YTicks = append(p.YTicks, Tick{at, text}) }

// AddLabel adds the label of a row.
func (p *Plot) AddLabel(at float64, text string) { p.Labels = append(p.Labels, Tick{at, text}) }

// AddRect adds a bar.
func (p *Plot) AddRect(x, y, w, h float64, class, title string) {
	p.Rects = append(p.Rects, Rect{x, y, w, h, class, title})
}

// AddLine adds a straight line.
func (p *Plot) AddLine(x1, y1, x2, y2 float64, class, title string) {
	p.Lines = append(p.Lines, Rule{x1, y1, x2, y2, class, title})
}

// Round keeps the page small: a hundredth of a pixel is nothing.
func Round(v float64) float64 { return math.Round(v*100) / 100 }

// Scale returns a round upper end for an axis, of shares or of seconds, and the step of its ticks,
// six at most.
func Scale(most float64) (top, step float64) {
	for power := -4; ; power++ {
		for _, m := range []float64{1, 2, 5} {
			if step := m * math.Pow10(power); most <= 6*step {
				return step * max(1, math.Ceil(most/step-1e-9)), step
			}
		}
	}
}

// CountStep is a round distance of ticks that divides so many into five at most.
func CountStep(last float64) float64 {
	for step := 1.0; ; step *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if last <= 5*m*step {
				return m * step
			}
		}
	}
}

// Percent is a share as a tick of an axis whose ticks are step apart.
func Percent(v, step float64) string {
	digits := max(0, int(math.Ceil(-math.Log10(step)-2-1e-9)))
	return fmt.Sprintf("%.*f %%", digits, 100*v)
}

// Attr makes the attribute of a path's geometry. html/template would escape
// plus signs of exponents if it were a string.
func Attr(d string) template.HTMLAttr { return template.HTMLAttr(`d="` + d + `"`) }

// AddCurve adds a path through points of the area, shares from the left and from the bottom.
func (p *Plot) AddCurve(points [][2]float64, class, title string) {
	at := make([]string, len(points))
	for i, c := range points {
		at[i] = fmt.Sprintf("%g,%g", p.X(c[0]), p.Y(c[1]))
	}
	p.Paths = append(p.Paths, Path{D: Attr("M" + strings.Join(at, " L")), Class: class, Title: title})
}
