package space

import (
	"fmt"
	"testing"
)

type shape = Shape[struct{}]

func TestWorth(t *testing.T) {
	for _, c := range []struct{ size, live, put, tables, overhead, want int64 }{
		{size: 1000, live: 300, put: 300, tables: 650, want: 950}, // much of it is the names of the blocks
		{size: 1000, live: 100, put: 300, tables: 600, want: 300},
		{size: 1000, live: 0, put: 300, tables: 600, want: 0}, // what is left are withdrawals
		{size: 1000, tables: 900, want: 0},
		{size: 1000, tables: 900, overhead: 1000, want: 1000}, // and a merge wrote it
		{size: 1000, live: 300, put: 300, tables: 900, want: 1000},
	} {
		if got := Worth(c.size, c.live, c.put, c.tables, c.overhead); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestPlan(t *testing.T) {
	mb := func(size, live int64) shape { return shape{Size: size << 20, Live: live << 20} }
	for name, c := range map[string]struct {
		shapes       []shape
		budget, most int64
		short        bool
		want         string // live/size of the chosen
	}{
		"nothing":                        {nil, 0, 1 << 30, false, "[]"},
		"full ones stay":                 {[]shape{mb(100, 90), mb(100, 60)}, 0, 1 << 30, false, "[]"},
		"half dead ones go":              {[]shape{mb(100, 90), mb(100, 50), mb(100, 10)}, 0, 1 << 30, false, "[10/100 50/100]"},
		"one new segment's worth":        {[]shape{mb(100, 40), mb(100, 45), mb(100, 50)}, 0, 90 << 20, false, "[40/100 45/100]"},
		"the emptiest even if larger":    {[]shape{mb(1000, 400)}, 0, 90 << 20, false, "[400/1000]"},
		"within the budget":              {[]shape{mb(100, 90), mb(100, 60)}, 300 << 20, 1 << 30, false, "[]"},
		"over it the emptiest first":     {[]shape{mb(100, 90), mb(100, 60), mb(100, 80)}, 300 << 20, 1 << 30, false, "[60/100 80/100]"},
		"over it but all is live":        {[]shape{mb(100, 99), mb(100, 100)}, 200 << 20, 1 << 30, false, "[]"},
		"no more than brings relief":     {[]shape{mb(100, 55), mb(100, 60), mb(100, 60)}, 320 << 20, 1 << 30, false, "[55/100]"},
		"dead names only":                {[]shape{mb(1, 0)}, 0, 1 << 30, false, "[0/1]"},
		"an empty budget means no one":   {[]shape{mb(100, 70)}, 0, 1 << 30, false, "[]"},
		"short: more are worth it":       {[]shape{mb(100, 90), mb(100, 75)}, 0, 1 << 30, true, "[75/100]"},
		"short: as much as there is":     {[]shape{mb(100, 40), mb(100, 30), mb(100, 20)}, 0, 55 << 20, true, "[20/100 30/100]"},
		"short: what needs least first":  {[]shape{mb(1000, 100), mb(100, 50)}, 0, 60 << 20, true, "[50/100]"},
		"short: nothing without room":    {[]shape{mb(100, 10)}, 0, 5 << 20, true, "[]"},
		"short: dead names all the same": {[]shape{mb(100, 10), mb(1, 0)}, 0, 0, true, "[0/1]"},
		"short and over the budget":      {[]shape{mb(100, 90)}, 100 << 20, 1 << 30, true, "[90/100]"},
	} {
		got := []string{}
		for _, s := range Plan(c.shapes, c.budget, c.most, c.short) {
			got = append(got, fmt.Sprintf("%d/%d", s.Live>>20, s.Size>>20))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}
