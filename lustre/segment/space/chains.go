package space

import (
	"cmp"
	"math"
	"slices"

	"cascadekv/internal/block"
)

// Chained is a block B with its names.
type Chained[B any] struct {
	Block B
	Names []block.Name
}

// order is when it was put.
func (c Chained[B]) order() uint64 {
	seq := uint64(math.MaxUint64)
	for _, n := range c.Names {
		seq = min(seq, n.Seq)
	}
	return seq
}

type nameKey struct{ namespace, key string }

// InChains returns blocks in the order in which they are likely to be read: each
// chain in one piece, heads first, and the chains, and the branches of one, in the
// order in which they were put. What follows on a block that is not among them
// begins a piece of its own.
func InChains[B any](blocks []Chained[B]) []Chained[B] {
	slices.SortStableFunc(blocks, func(a, b Chained[B]) int { return cmp.Compare(a.order(), b.order()) })
	named := make(map[nameKey]int, len(blocks))
	for i, b := range blocks {
		for _, n := range b.Names {
			named[nameKey{n.Namespace, n.Key}] = i
		}
	}
	next := make([][]int, len(blocks)) // what follows on each
	var heads, rest []int
	for i, b := range blocks {
		rest = append(rest, i)
		if before, ok := b.before(named); ok && before != i {
			next[before] = append(next[before], i)
		} else {
			heads = append(heads, i)
		}
	}
	out := make([]Chained[B], 0, len(blocks))
	done := make([]bool, len(blocks))
	// Blocks that stand at several places of their chains may follow on each
	// other in a ring, which has no head: these come last.
	stack := append(rest, heads...)
	slices.Reverse(stack[:len(rest)])
	slices.Reverse(stack[len(rest):])
	for len(stack) > 0 {
		i := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if done[i] {
			continue
		}
		done[i] = true
		out = append(out, blocks[i])
		for _, child := range slices.Backward(next[i]) {
			stack = append(stack, child)
		}
	}
	return out
}

// before finds the block that c follows on, by its first name that has a parent.
func (c Chained[B]) before(named map[nameKey]int) (int, bool) {
	for _, n := range c.Names {
		if i, ok := named[nameKey{n.Namespace, n.Parent}]; ok && n.Parent != "" {
			return i, true
		}
	}
	return 0, false
}
