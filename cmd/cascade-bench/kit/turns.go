package kit

import "iter"

// Order returns the ways of a round in the order of their turns: another one is
// first in each round.
func Order(round, ways int) iter.Seq[int] {
	return func(yield func(way int) bool) {
		for turn := range ways {
			if !yield((turn + round) % ways) {
				return
			}
		}
	}
}

// Turns measures each way once in every round and returns the rates by way, then
// round. finished is called after each round.
func Turns(rounds, ways int, measure func(round, way int) (rate float64, err error), finished func()) ([][]float64, error) {
	rates := make([][]float64, ways)
	for round := range rounds {
		for way := range Order(round, ways) {
			rate, err := measure(round, way)
			if err != nil {
				return nil, err
			}
			rates[way] = append(rates[way], rate)
		}
		finished()
	}
	return rates, nil
}

// Progress returns a function to call after each of total steps; it calls report,
// unless that is nil.
func Progress(total int, report func(done, total int)) func() {
	done := 0
	return func() {
		if done++; report != nil {
			report(done, total)
		}
	}
}

// After returns a function that calls f from its call n+1 on.
func After(n int, f func()) func() {
	return func() {
		if n--; n < 0 {
			f()
		}
	}
}
