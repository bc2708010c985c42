package bench

import (
	"math"
	"os"
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
			if got := median(c.in); got != c.want {
				t.Errorf("median(%v) = %v, want %v", c.in, got, c.want)
			}
		})
	}
}

func TestRoundIsFiniteForJSON(t *testing.T) {
	if round(math.Inf(1)) != 0 || round(math.NaN()) != 0 || round(1.23456) != 1.2346 {
		t.Error(round(math.Inf(1)), round(math.NaN()), round(1.23456))
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
	v, err := newValues(1, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer v.close()
	seen := map[string]bool{}
	for range 3 {
		first := v.stamps(5)
		for i := range uint64(5) {
			stamp(v.at(0), first+i+1)
			seen[string(v.at(0))] = true
		}
	}
	if len(seen) != 15 {
		t.Errorf("%d contents in 15 puts", len(seen))
	}
}

func TestMachineIsNamed(t *testing.T) {
	if m := readMachine(); m.CPU == "" || m.CPUs < 1 || m.Memory == 0 || m.Kernel == "" || m.LoadAvg == "" {
		t.Errorf("%+v", m)
	}
}
