package estimate

import "math"

// Copies are the levels that have a block of a chain: bit i stands for the i-th line.
type Copies struct {
	Levels uint8
	Bytes  int64
}

// Fastest returns from which level to load each block of a chain: that from which it is there
// soonest, after what is loaded from there of the chain before it. Blocks that follow each other
// and are on the same levels are loaded from one. Where two levels are as fast, it is the first. A
// block that is nowhere counts as on level 0.
func Fastest(chain []Copies, lines []Line) []int {
	levels, loads := make([]int, len(chain)), make([]int64, len(lines))
	for from := 0; from < len(chain); {
		to, bytes := from, int64(0)
		for ; to < len(chain) && chain[to].Levels == chain[from].Levels; to++ {
			bytes += chain[to].Bytes
		}
		chosen, soonest := -1, int64(math.MaxInt64)
		for i, l := range lines {
			if t := int64(l.Time(loads[i] + bytes)); chain[from].Levels&(1<<i) != 0 && (chosen < 0 || t < soonest) {
				chosen, soonest = i, t
			}
		}
		chosen = max(chosen, 0)
		loads[chosen] += bytes
		for ; from < to; from++ {
			levels[from] = chosen
		}
	}
	return levels
}
