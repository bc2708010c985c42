package space

import (
	"cmp"
	"hash/maphash"
	"slices"

	"cascadekv/internal/block"
)

const (
	// alike bounds how much fuller a file may be than those that it is joined with
	// are together. So a byte that is moved goes to a file half again as full as the
	// one it leaves, and how often it is moved until it lies in a full one is
	// bounded by a logarithm, however slowly small files come. (Where bytes fill some
	// segments and blocks others the base of that is less.)
	alike = 2

	// least is the part of a segment that a file counts for at least: below it the
	// file costs more than what is in it.
	least = 1.0 / 1024

	// candidates bounds the files whose chains are read before some are joined, in
	// full segments. One is written.
	candidates = 2
)

// Limits bound a segment.
type Limits struct {
	Bytes  int64
	Blocks int // 0: any number
}

// sized is a shape by its number and the part of a segment that its live blocks
// fill.
type sized struct {
	at   int
	fill float64
}

// joinable returns the shapes in the order of how little they fill, without those
// that come before the first two that can be joined; nil if there are no two.
func joinable[F any](shapes []Shape[F], l Limits) []sized {
	order := make([]sized, len(shapes))
	for i, s := range shapes {
		fill := max(least, float64(s.Live)/float64(max(1, l.Bytes)))
		if l.Blocks > 0 {
			fill = max(fill, float64(s.Blocks)/float64(l.Blocks))
		}
		order[i] = sized{i, fill}
	}
	slices.SortStableFunc(order, func(a, b sized) int { return cmp.Compare(a.fill, b.fill) })
	for i := range max(1, len(order)) - 1 {
		if order[i+1].joins(order[i].fill) {
			return order[i:]
		}
	}
	return nil
}

// joins reports whether s may be joined with files that fill so much together.
func (s sized) joins(fill float64) bool { return s.fill <= alike*fill && s.fill+fill <= 1 }

// Small returns the segments that Join may choose from, the least full first: few
// enough for their chains to be read. It returns nil if no two can be joined, as when
// all are more than half full.
func Small[F any](shapes []Shape[F], l Limits) (small []Shape[F]) {
	total := 0.0
	for _, s := range joinable(shapes, l) {
		if total += s.fill; total > candidates {
			break
		}
		small = append(small, shapes[s.at])
	}
	return small
}

// Join chooses segments to rewrite into one because there are too many, though what
// they hold is live; nil if there are no two that one has room for. It begins with
// the least full. Next comes the one with the most links to those chosen for what it
// fills, and among equals the least full. chains numbers the segments as shapes does;
// nil: nothing is known of them.
//
// The rule is SGLang-LSM's Automatic Tensor File Merging (section Runtime Services):
// above a threshold of the number of files adjacent ones are combined. There keys are
// ordered by prefix, and so are files; here chains say what is adjacent.
func Join[F any](shapes []Shape[F], l Limits, chains *Chains) (chosen []Shape[F]) {
	var links []map[int]int
	if chains != nil {
		links = chains.links()
	}
	left := joinable(shapes, l)
	worth := make([]float64, len(shapes)) // links with those chosen, for what it fills
	total := 0.0
	for len(left) > 0 {
		next := -1
		for i, s := range left {
			if (total == 0 || s.joins(total)) && (next < 0 || worth[s.at]/s.fill > worth[left[next].at]/left[next].fill) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		s := left[next]
		left = slices.Delete(left, next, next+1)
		chosen = append(chosen, shapes[s.at])
		total += s.fill
		if links != nil {
			for other, n := range links[s.at] {
				worth[other] += float64(n)
			}
		}
	}
	return chosen
}

// Chains is which files have blocks of the same chains. It keeps some 40 bytes of
// each name: names with the same hash are taken for one.
type Chains struct {
	seed    maphash.Seed
	files   map[uint64]int // by the hashes of the names in them
	parents [][]uint64     // what the names in a file follow on
}

// NewChains is for files that are numbered from 0.
func NewChains(files int) *Chains {
	return &Chains{seed: maphash.MakeSeed(), files: map[uint64]int{}, parents: make([][]uint64, files)}
}

// Add notes a name of a block in a file.
func (c *Chains) Add(file int, n block.Name) {
	c.files[maphash.Comparable(c.seed, nameKey{n.Namespace, n.Key})] = file
	if n.Parent != "" {
		c.parents[file] = append(c.parents[file], maphash.Comparable(c.seed, nameKey{n.Namespace, n.Parent}))
	}
}

// links counts for each file, by the other one, the names of either that follow on one
// of the other.
func (c *Chains) links() []map[int]int {
	all := make([]map[int]int, len(c.parents))
	for i := range all {
		all[i] = map[int]int{}
	}
	for file, parents := range c.parents {
		for _, p := range parents {
			if other, ok := c.files[p]; ok && other != file {
				all[file][other]++
				all[other][file]++
			}
		}
	}
	return all
}
