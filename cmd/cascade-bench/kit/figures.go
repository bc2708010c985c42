package kit

import (
	"math"
	"slices"
)

// Units of rates, as disks and networks count.
const (
	Mega = 1e6
	Giga = 1e9
)

// Figure is how fast one side did one operation, over all rounds.
type Figure struct {
	MBps    float64 `json:"mbps"` // median; 1 MB = 10⁶ bytes of values
	MinMBps float64 `json:"min_mbps"`
	MaxMBps float64 `json:"max_mbps"`
}

// FigureOf summarizes rates in MB/s.
func FigureOf(rates []float64) Figure {
	if len(rates) == 0 {
		return Figure{}
	}
	return Figure{MBps: Median(rates), MinMBps: Round(slices.Min(rates)), MaxMBps: Round(slices.Max(rates))}
}

// Median returns the middle of v, rounded, the mean of both middles when there
// are two, and 0 for nothing.
func Median(v []float64) float64 {
	n := len(v)
	if n == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return Round((s[(n-1)/2] + s[n/2]) / 2)
}

// Ratios divides pair by pair, a[i] / b[i], and returns the median of that too.
func Ratios(a, b []float64) (each []float64, median float64) {
	each = make([]float64, len(a))
	for i := range a {
		each[i] = Round(a[i] / b[i])
	}
	return each, Median(each)
}

// Round keeps four digits after the point, more than a measurement has. What
// JSON cannot express becomes 0.
func Round(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	return math.Round(x*1e4) / 1e4
}
