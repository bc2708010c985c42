package kit

import (
	"errors"
	"math"
	"os"
	"slices"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for name, c := range map[string]struct {
		in   []float64
		want float64
	}{
		"nothing": {nil, 0},
		"one":     {[]float64{3}, 3},
		"odd":     {[]float64{9, 1, 5}, 5},
		"even":    {[]float64{4, 1, 3, 2}, 2.5},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Median(c.in); got != c.want {
				t.Errorf("Median(%v) = %v, want %v", c.in, got, c.want)
			}
		})
	}
}

func TestRoundIsFiniteForJSON(t *testing.T) {
	if Round(math.Inf(1)) != 0 || Round(math.NaN()) != 0 || Round(1.23456) != 1.2346 {
		t.Error(Round(math.Inf(1)), Round(math.NaN()), Round(1.23456))
	}
}

func TestParseStat(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want time.Duration
		bad  bool
	}{
		"plain":       {"7 (redis) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14", 230 * time.Millisecond, false},
		"parentheses": {"7 (a) b) (c) S 1 2 3 4 5 6 7 8 9 10 1 0 0 0", 10 * time.Millisecond, false},
		"cut":         {"7 (redis) S 1 2 3", 0, true},
		"no number":   {"7 (redis) S 1 2 3 4 5 6 7 8 9 10 x 12 13", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat([]byte(c.text))
			if got != c.want || (err != nil) != c.bad {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseStat(own); err != nil {
		t.Error(err)
	}
}

func TestStampsNeverRepeat(t *testing.T) {
	v, err := NewValues(1, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	seen := map[string]bool{}
	for range 3 {
		first := v.Stamps(5)
		for i := range uint64(5) {
			Stamp(v.At(0), first+i+1)
			seen[string(v.At(0))] = true
		}
	}
	if len(seen) != 15 {
		t.Errorf("%d contents in 15 puts", len(seen))
	}
}

func TestMachineIsNamed(t *testing.T) {
	if m := ReadMachine(); m.CPU == "" || m.CPUs < 1 || m.Memory == 0 || m.Kernel == "" || m.LoadAvg == "" {
		t.Errorf("%+v", m)
	}
}

// TestTurns: each way is measured once in a round, another one first each time,
// and an error ends it.
func TestTurns(t *testing.T) {
	var order []int
	finished := 0
	rates, err := Turns(3, 2, func(round, way int) (float64, error) {
		order = append(order, way)
		return float64(10*way + round), nil
	}, func() { finished++ })
	if err != nil || finished != 3 || !slices.Equal(order, []int{0, 1, 1, 0, 0, 1}) {
		t.Errorf("order %v, %d rounds finished, %v", order, finished, err)
	}
	if !slices.Equal(rates[0], []float64{0, 1, 2}) || !slices.Equal(rates[1], []float64{10, 11, 12}) {
		t.Errorf("rates %v", rates)
	}
	if _, err := Turns(1, 1, func(int, int) (float64, error) { return 0, ErrWrong }, func() {}); !errors.Is(err, ErrWrong) {
		t.Errorf("got %v, want %v", err, ErrWrong)
	}
}
