package trace

import (
	"math"
	"math/bits"
)

// random is the generator behind Synth. All of it is whole-number arithmetic:
// floating point may be fused on one machine and not on another, and a
// synthesised trace is the same bytes everywhere.
type random struct{ state uint64 }

func newRandom(seed, stream uint64) random {
	return random{origin(seed) ^ origin(^stream)}
}

func (r *random) next() uint64 {
	r.state += weyl
	x := r.state
	x = (x ^ x>>32) * salt
	x = (x ^ x>>32) * salt
	return x ^ x>>32
}

// below returns a number from 0 to n-1; n must not be 0. The bias of n/2⁶⁴ is
// of no account here.
func (r *random) below(n uint64) uint64 {
	hi, _ := bits.Mul64(r.next(), n)
	return hi
}

// exponential returns an exponential variate of mean 1 with 24 fraction bits,
// by von Neumann's method, which only compares uniform numbers: the length of
// a falling run decides between accepting its first number and adding one.
func (r *random) exponential() uint64 {
	const fraction = 24
	for whole := uint64(0); ; whole++ {
		first := r.next()
		odd := true
		for last := first; ; odd = !odd {
			next := r.next()
			if next >= last {
				break
			}
			last = next
		}
		if odd {
			return whole<<fraction | first>>(64-fraction)
		}
	}
}

// spread returns an exponential variate of the given mean.
func (r *random) spread(mean int64) int64 {
	return int64(r.exponential() * uint64(mean) >> 24)
}

// heavy returns a variate of the given mean whose tail is heavier: most are
// well below the mean, a few are many times it. It is the square of an
// exponential one, halved.
func (r *random) heavy(mean int64) int64 {
	x := r.exponential()
	return int64((x * x >> 24) * uint64(mean) >> 25)
}

// zipfWeight returns k^-s in millionths, at least 1. Rounding that coarse
// hides the last bits, in which machines may differ.
func zipfWeight(k int, s float64) uint64 {
	return max(1, uint64(math.Round(1e6*math.Pow(float64(k), -s))))
}
