package tuner

import (
	"cmp"
	"errors"
	"fmt"
	"math"
)

// ErrBadOption is an option that can not be.
var ErrBadOption = errors.New("tuner: bad option")

// Setting is what is tuned.
type Setting struct {
	T int `json:"t"` // size ratio, 2 or more
	K int `json:"k"` // runs of a level, from 1
}

// Default is where an index starts that has seen no work.
var Default = Setting{T: 10, K: 4}

// String names the setting as logs do.
func (s Setting) String() string { return fmt.Sprintf("T=%d K=%d", s.T, s.K) }

// Shape is how a tree uses T and K.
type Shape uint8

// The shapes of the package comment.
const (
	Pebble Shape = iota // K runs on top, one in each level below
	Tiered              // K runs in every level
)

// String names the shape as reports do.
func (s Shape) String() string {
	if s == Tiered {
		return "tiered"
	}
	return "pebble"
}

// Tree is what the costs depend on besides T, K and the mix. Only Entries has
// to be given.
type Tree struct {
	Shape       Shape
	Entries     int64   // N, at least 1 is assumed
	EntryBytes  float64 // E on disk, compressed; default 48
	PageBytes   float64 // default 4096
	BufferBytes float64 // M, default 16 MiB
	BaseBytes   float64 // A, of the first level below the top; default 64 MiB. Shape Pebble only
	FilterBits  float64 // b, default 10
	// FilterCost (f, default 0.08) and Sequential (s, default 0.25) are in
	// pages. The defaults are what Pebble measured over a warm page cache: 0.9
	// µs for each run that an absent key is sought in and 0.5 µs for each entry
	// loaded, compactions included, against 10 µs for a key that is there. Over
	// a cold device both are smaller.
	FilterCost float64
	Sequential float64
}

func (t Tree) withDefaults() Tree {
	for _, f := range []struct {
		field *float64
		value float64
	}{
		{&t.EntryBytes, 48}, {&t.PageBytes, 4096}, {&t.BufferBytes, 16 << 20}, {&t.BaseBytes, 64 << 20},
		{&t.FilterBits, 10}, {&t.FilterCost, 0.08}, {&t.Sequential, 0.25},
	} {
		if !(*f.field > 0) {
			*f.field = f.value
		}
	}
	t.Entries = max(t.Entries, 1)
	return t
}

// Costs are pages for each operation of a kind.
type Costs struct {
	Put   float64 `json:"put"`
	Hit   float64 `json:"hit"`
	Range float64 `json:"range"`
	Miss  float64 `json:"miss"`
}

// Costs returns what operations cost under s, when a range returns scanned
// entries.
func (t Tree) Costs(s Setting, scanned float64) Costs {
	t = t.withDefaults()
	runs, rewrites := t.structure(s)
	perPage := math.Max(1, t.PageBytes/t.EntryBytes)
	wrong := math.Exp(-t.FilterBits * math.Ln2 * math.Ln2)
	return Costs{
		Put:   t.Sequential * (1 + 2*rewrites) / perPage,
		Hit:   1 + wrong*(runs-1) + t.FilterCost*runs,
		Range: runs + scanned/perPage,
		Miss:  wrong*runs + t.FilterCost*runs,
	}
}

// structure returns R, the runs that a search may meet, and D, how often an
// entry is rewritten.
func (t Tree) structure(s Setting) (runs, rewrites float64) {
	ratio, k, bytes := float64(s.T), float64(s.K), float64(t.Entries)*t.EntryBytes
	if t.Shape == Tiered {
		levels := levelsFor(ratio, bytes/t.BufferBytes)
		return k * levels, levels * (ratio - 1) / (k + 1)
	}
	levels := levelsFor(ratio, bytes*(ratio-1)/t.BaseBytes)
	first := math.Min(bytes, t.BaseBytes)
	return k + levels, 1 + first/(2*k*t.BufferBytes) + (levels-1)*(ratio+1)/2
}

// levelsFor is ⌈log_T(x + 1)⌉, at least 1. What floating point adds to an exact
// power must not make a level.
func levelsFor(ratio, x float64) float64 {
	return math.Max(1, math.Ceil(math.Log(x+1)/math.Log(ratio)-1e-9))
}

// Mix is the work of a window.
type Mix struct {
	Put     float64 `json:"put"` // shares, together 1
	Hit     float64 `json:"hit"`
	Range   float64 `json:"range"`
	Miss    float64 `json:"miss"`
	Scanned float64 `json:"scanned"` // entries of a range, on average
}

// Cost returns the pages that an operation of the mix costs on average.
func (t Tree) Cost(s Setting, m Mix) float64 {
	c := t.Costs(s, m.Scanned)
	return m.Put*c.Put + m.Hit*c.Hit + m.Range*c.Range + m.Miss*c.Miss
}

// shares returns each kind's part of the cost.
func (t Tree) shares(s Setting, m Mix) [4]float64 {
	c := t.Costs(s, m.Scanned)
	parts := [4]float64{m.Put * c.Put, m.Hit * c.Hit, m.Range * c.Range, m.Miss * c.Miss}
	total := parts[0] + parts[1] + parts[2] + parts[3]
	if total > 0 {
		for i := range parts {
			parts[i] /= total
		}
	}
	return parts
}

// shift is how far two mixes lie apart, 0 to 1: half the sum of the differences
// of their shares, of the cost or of the count, whichever is larger.
func (t Tree) shift(s Setting, a, b Mix) float64 {
	return math.Max(distance(t.shares(s, a), t.shares(s, b)),
		distance([4]float64{a.Put, a.Hit, a.Range, a.Miss}, [4]float64{b.Put, b.Hit, b.Range, b.Miss}))
}

func distance(x, y [4]float64) float64 {
	sum := 0.0
	for i := range x {
		sum += math.Abs(x[i] - y[i])
	}
	return sum / 2
}

// Bounds are the settings that are considered.
type Bounds struct {
	MinT, MaxT int // default 4 to 16
	MaxK       int // K is 1 to MaxK, in a Tiered tree at most T − 1; default 15
}

func (b Bounds) withDefaults() Bounds {
	return Bounds{cmp.Or(b.MinT, 4), cmp.Or(b.MaxT, 16), cmp.Or(b.MaxK, 15)}
}

func (b Bounds) check() error {
	if b.MinT < 2 || b.MaxT < b.MinT || b.MaxT > 1024 || b.MaxK < 1 {
		return fmt.Errorf("%w: T from %d to %d (2 to 1024), K up to %d (1 or more)", ErrBadOption, b.MinT, b.MaxT, b.MaxK)
	}
	return nil
}

// Settings returns all settings within the bounds for a shape, by T, then K.
// Zero bounds mean the defaults.
func (b Bounds) Settings(shape Shape) (all []Setting) {
	b = b.withDefaults()
	for ratio := b.MinT; ratio <= b.MaxT; ratio++ {
		maxK := b.MaxK
		if shape == Tiered {
			maxK = min(maxK, ratio-1)
		}
		for k := 1; k <= maxK; k++ {
			all = append(all, Setting{T: ratio, K: k})
		}
	}
	return all
}

// Best returns the setting in bounds under which the mix costs least, and that
// cost; of equals the one with the smallest T, then K.
func (t Tree) Best(b Bounds, m Mix) (best Setting, cost float64) {
	cost = math.Inf(1)
	for _, s := range b.Settings(t.Shape) {
		if c := t.Cost(s, m); c < cost {
			best, cost = s, c
		}
	}
	return best, cost
}
