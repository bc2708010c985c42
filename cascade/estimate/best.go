package estimate

import "time"

// Run is some blocks of a chain, one after the other, that are loaded from the same level.
type Run struct {
	Level  int // index of its line
	Blocks int
	Bytes  int64
}

// Times predicts how long it takes to load a chain up to the end of each run: levels load at the
// same time, and the bytes of all take the first line's time in the end, which is that of the
// memory that they are copied from. A run of level 0 is there already.
func Times(runs []Run, lines []Line) []time.Duration {
	times := make([]time.Duration, len(runs))
	below, total, slowest := make([]int64, len(lines)), int64(0), time.Duration(0)
	for i, r := range runs {
		total += r.Bytes
		if r.Level > 0 {
			below[r.Level] += r.Bytes
			slowest = max(slowest, lines[r.Level].Time(below[r.Level]))
		}
		times[i] = slowest + lines[0].Time(total)
	}
	return times
}

// Best returns how many blocks of a chain to load and to compute the rest, so that all are there
// soonest, and how long these take to load. perBlock is how long computing one takes; what is
// not in the chain is computed in any case. A run is loaded whole or not at all. Where loading takes
// as long as computing, it is loading.
func Best(runs []Run, lines []Line, perBlock time.Duration) (blocks int, load time.Duration) {
	all := 0
	for _, r := range runs {
		all += r.Blocks
	}
	best, done := time.Duration(all)*perBlock, 0
	for i, t := range Times(runs, lines) {
		done += runs[i].Blocks
		if whole := t + time.Duration(all-done)*perBlock; whole <= best {
			best, blocks, load = whole, done, t
		}
	}
	return blocks, load
}
