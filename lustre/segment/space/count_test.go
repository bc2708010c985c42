package space

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"cascadekv/internal/block"
)

// numbered is a segment by its number.
type numbered = Shape[int]

// chainsOf takes the names of files, each as key<parent.
func chainsOf(files []string) *Chains {
	c := NewChains(len(files))
	for i, names := range files {
		for _, word := range strings.Fields(names) {
			key, parent, _ := strings.Cut(word, "<")
			c.Add(i, block.Name{Namespace: "ns", Key: key, Parent: parent})
		}
	}
	return c
}

// TestJoin: files are live bytes of 100, or live bytes/blocks of 10, with names.
func TestJoin(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		names []string
		want  string // numbers of the chosen
	}{
		"none":                            {nil, nil, "[]"},
		"one":                             {[]string{"10"}, nil, "[]"},
		"two":                             {[]string{"20", "10"}, nil, "[1 0]"},
		"full ones stay":                  {[]string{"100", "60", "51"}, nil, "[]"},
		"two halves":                      {[]string{"50", "90", "50"}, nil, "[0 2]"},
		"no more than a segment":          {[]string{"30", "30", "30", "30"}, nil, "[0 1 2]"},
		"the smallest":                    {[]string{"60", "40", "30", "20"}, nil, "[3 2 1]"},
		"a large one for a small one":     {[]string{"80", "5"}, nil, "[]"},
		"a large one for some":            {[]string{"40", "5", "7", "9"}, nil, "[1 2 3 0]"},
		"the smallest has no equal":       {[]string{"1", "40", "50"}, nil, "[1 2]"},
		"those of records alone":          {[]string{"0", "0", "40"}, nil, "[0 1]"},
		"too many blocks":                 {[]string{"5/6", "5/6"}, nil, "[]"},
		"as many blocks as fit":           {[]string{"5/4", "5/4", "5/4"}, nil, "[0 1]"},
		"the other half of its chain":     {[]string{"40", "40", "40"}, []string{"a", "x", "b<a"}, "[0 2]"},
		"the one before":                  {[]string{"40", "40", "40"}, []string{"b<a", "x y<x", "a"}, "[0 2]"},
		"another namespace's is no chain": {[]string{"40", "40", "40"}, []string{"a", "b<c", "d<e"}, "[0 1]"},
		"the rest of those chosen":        {[]string{"30", "30", "30", "30"}, []string{"a", "x", "c<b", "b<a"}, "[0 3 2]"},
		"two links before one":            {[]string{"40", "40", "40"}, []string{"a A", "b<a", "c<a B<A"}, "[0 2]"},
		"for what it fills":               {[]string{"20", "20", "40", "41"}, []string{"a A", "b<a", "C<A", ""}, "[0 1 2]"},
		"its chain, but too full":         {[]string{"10", "10", "90"}, []string{"a", "x", "b<a"}, "[0 1]"},
		"within one file":                 {[]string{"40", "40", "40"}, []string{"a", "x y<x z<y", "b<a"}, "[0 2]"},
	} {
		var shapes []numbered
		for i, f := range c.files {
			s := numbered{File: i, Size: 100}
			if n, _ := fmt.Sscanf(f, "%d/%d", &s.Live, &s.Blocks); n == 0 {
				t.Fatal(f)
			}
			shapes = append(shapes, s)
		}
		var chains *Chains
		if c.names != nil {
			chains = chainsOf(c.names)
		}
		got := []int{}
		for _, s := range Join(shapes, Limits{Bytes: 100, Blocks: 10}, chains) {
			got = append(got, s.File)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

// TestJoinsEnd: whatever there is, files are joined until no two can be, each time
// into fewer, and no byte is moved more often than a logarithm allows. Small leaves out
// nothing that would have been joined.
func TestJoinsEnd(t *testing.T) {
	const segment = 1 << 20
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		type content struct{ moves int }
		var shapes []Shape[content]
		limits := Limits{Bytes: segment}
		added := 200
		var moves int
		for {
			if added > 0 { // files come one at a time, as those of a rank do
				added--
				shapes = append(shapes, Shape[content]{Live: segment/1024 + rng.Int64N(1<<rng.IntN(20)), Size: segment})
			}
			small := Small(shapes, limits)
			if len(small) == 0 {
				if len(Join(shapes, limits, nil)) > 0 {
					t.Fatal("there is something to join, and Small has nothing")
				}
				if added == 0 {
					break
				}
				continue
			}
			chosen := Join(small, limits, nil)
			if len(chosen) < 2 {
				t.Fatalf("Small has %v, Join %v", small, chosen)
			}
			one := Shape[content]{Size: segment}
			for _, s := range chosen {
				one.Live += s.Live
				one.File.moves = max(one.File.moves, s.File.moves+1)
			}
			if one.Live > segment {
				t.Fatalf("%d bytes in one segment", one.Live)
			}
			shapes = slices.DeleteFunc(shapes, func(s Shape[content]) bool {
				i := slices.Index(chosen, s)
				if i >= 0 {
					chosen = slices.Delete(chosen, i, i+1)
				}
				return i >= 0
			})
			if len(chosen) > 0 {
				t.Fatal("a file was chosen twice")
			}
			shapes = append(shapes, one)
			moves = max(moves, one.File.moves)
		}
		half := 0
		for _, s := range shapes {
			if s.Live <= segment/2 {
				half++
			}
		}
		if half > 10 {
			t.Errorf("%d files that are less than half full are left", half)
		}
		if moves > 18 { // 1.5 to the 18th is more than 1024
			t.Errorf("a block was moved %d times", moves)
		}
	}
}
