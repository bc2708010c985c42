package segment

import (
	"cmp"
	"slices"
)

// inChains returns blocks in the order in which they are likely to be read: each
// chain in one piece, heads first, and the chains, and the branches of one, in the
// order in which they were put. What follows on a block that is not among them
// begins a piece of its own.
func inChains(blocks []moving) []moving {
	slices.SortStableFunc(blocks, func(a, b moving) int { return cmp.Compare(a.order(), b.order()) })
	named := make(map[nameKey]int, len(blocks))
	for i, b := range blocks {
		for _, n := range b.names {
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
	out := make([]moving, 0, len(blocks))
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

// before finds the block that m follows on, by its first name that tells.
func (m moving) before(named map[nameKey]int) (int, bool) {
	for _, n := range m.names {
		if i, ok := named[nameKey{n.Namespace, n.Parent}]; ok && n.Parent != "" {
			return i, true
		}
	}
	return 0, false
}
