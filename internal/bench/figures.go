package bench

import (
	"math"
	"slices"
)

const (
	mega = 1e6 // MB/s as disks and networks count
	giga = 1e9
)

// Figure is how fast one side did one operation, over all rounds.
type Figure struct {
	MBps    float64 `json:"mbps"` // median; 1 MB = 10⁶ bytes of values
	MinMBps float64 `json:"min_mbps"`
	MaxMBps float64 `json:"max_mbps"`
}

func figureOf(rates []float64) Figure {
	if len(rates) == 0 {
		return Figure{}
	}
	return Figure{MBps: round(median(rates)), MinMBps: round(slices.Min(rates)), MaxMBps: round(slices.Max(rates))}
}

// median returns the middle of v, the mean of both middles when there are two,
// and 0 for nothing.
func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	switch n := len(s); {
	case n == 0:
		return 0
	case n%2 == 1:
		return s[n/2]
	default:
		return (s[n/2-1] + s[n/2]) / 2
	}
}

// ratios divides pair by pair: a[i] / b[i].
func ratios(a, b []float64) []float64 {
	out := make([]float64, 0, len(a))
	for i := range a {
		out = append(out, round(a[i]/b[i]))
	}
	return out
}

// round keeps four digits after the point, which is more than a measurement
// has to say.
func round(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0 // JSON knows neither
	}
	return math.Round(x*1e4) / 1e4
}
