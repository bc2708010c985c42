package space

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"cascadekv/internal/block"
)

// TestInChains: names are key<parent, put in this order.
func TestInChains(t *testing.T) {
	for _, c := range []struct{ put, want string }{
		{"", ""},
		{"a c b", "a c b"},
		{"a x b<a y<x c<b z<y", "a b<a c<b x y<x z<y"},
		{"a b<a c<b B<a C<B d<c", "a b<a c<b d<c B<a C<B"},
		{"c<b x d<c y<x", "c<b d<c x y<x"},                 // a and b are not among them
		{"b<a c<b a", "a b<a c<b"},                         // written again later than what follows
		{"x a<b b<a y<x", "x y<x a<b b<a"},                 // a ring
		{"a<a b<a", "a<a b<a"},                             // on itself
		{"a b|q<a r x c<b|r s<q", "a b|q<a c<b|r s<q r x"}, // blocks with two names
	} {
		var blocks []Chained[int]
		for i, word := range strings.Fields(c.put) {
			m := Chained[int]{Block: i}
			text, parent, _ := strings.Cut(word, "<")
			for _, key := range strings.Split(text, "|") {
				m.Names = append(m.Names, block.Name{Namespace: "ns", Key: key, Parent: strings.Split(parent, "|")[0], Seq: uint64(i + 1)})
			}
			blocks = append(blocks, m)
		}
		words := strings.Fields(c.put)
		var got []string
		for _, m := range InChains(blocks) {
			got = append(got, words[m.Block])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("put %q: %q, want %q", c.put, strings.Join(got, " "), c.want)
		}
	}
}

// TestInChainsKeepsAll: whatever names say, every block comes out once.
func TestInChainsKeepsAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		n := rng.IntN(40)
		var blocks []Chained[int]
		for i := range n {
			name := block.Name{Namespace: fmt.Sprint(rng.IntN(2)), Key: fmt.Sprint(i), Seq: uint64(rng.IntN(2*n + 1))}
			if rng.IntN(4) > 0 {
				name.Parent = fmt.Sprint(rng.IntN(n))
			}
			blocks = append(blocks, Chained[int]{Block: i, Names: []block.Name{name}})
		}
		var offs []int
		for _, m := range InChains(blocks) {
			offs = append(offs, m.Block)
		}
		slices.Sort(offs)
		for i, off := range offs {
			if off != i {
				t.Fatalf("%d blocks came out as %v", n, offs)
			}
		}
		if len(offs) != n {
			t.Fatalf("%d of %d blocks came out", len(offs), n)
		}
	}
}
