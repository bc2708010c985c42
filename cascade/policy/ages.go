package policy

import (
	"math"
	"math/bits"
	"time"
)

// tick is the unit in which ages are kept: 17 ms, so that 32 bits last for two years.
const tick = 1 << 24 * time.Nanosecond

// ticks returns a time as a number of ticks.
func ticks(d time.Duration) uint32 { return uint32(max(d, 0) / tick) }

// Ages are divided into bins, each longer than the one before by the same factor: what an age of a minute says of the next one, an
// age of an hour says of the next hour. A bin is divided into steps, each a power of two of ticks and no more than ringSteps that are in
// use at a time: blocks that were used last in the same step change their bin together, when the middle of the step is too old for
// it. So each step of a bin lies in one step of the next.
const (
	ageBins   = 36
	firstBin  = 0.25 // seconds
	binFactor = 1.45
	ringSteps = 32
)

var (
	binEnds   [ageBins]uint32  // ticks at which a bin ends; the last one never does
	binWidths [ageBins]float64 // seconds
	stepBits  [ageBins]uint8   // log₂ of the ticks of a bin's steps; the last one has a single step
	leastBins [33]uint8        // by the bits of an age: no block of such an age is in a bin before this
)

func init() {
	begin, end := 0.0, firstBin
	for i := range ageBins {
		binEnds[i], binWidths[i] = uint32(math.Ceil(end*float64(time.Second)/float64(tick))), end-begin
		begin, end = end, end*binFactor
	}
	binEnds[ageBins-1] = math.MaxUint32
	for bin, from := 0, uint32(0); bin < ageBins-1; bin++ {
		if bin > 0 {
			from, stepBits[bin] = binEnds[bin-1], stepBits[bin-1]
		}
		for (binEnds[bin]-from-1)>>stepBits[bin] >= ringSteps-2 {
			stepBits[bin]++
		}
	}
	stepBits[ageBins-1] = 32
	for n := 1; n < len(leastBins); n++ {
		bin := leastBins[n-1]
		for bin < ageBins-1 && binEnds[bin]+halfStep(bin) <= 1<<(n-1) {
			bin++
		}
		leastBins[n] = bin
	}
}

func halfStep(bin uint8) uint32 { return 1 << stepBits[bin] / 2 }

// stepOf is the place of the step of a bin that a tick is in, in a ring of steps.
func stepOf(bin uint8, at uint32) uint8 { return uint8(at >> stepBits[bin] % ringSteps) }

// ages are the bins as of a tick.
type ages struct {
	now    uint32
	starts [ageBins]uint32 // the first tick that is not too old for a bin
}

// advance makes a later tick the present.
func (a *ages) advance(now uint32) {
	a.now = now
	for bin := range uint8(ageBins - 1) {
		if passed := int64(now) - int64(binEnds[bin]) - int64(halfStep(bin)); passed >= 0 {
			a.starts[bin] = (uint32(passed)>>stepBits[bin] + 1) << stepBits[bin]
		}
	}
}

// bin is that of a block that was used last at a tick.
func (a *ages) bin(touched uint32) uint8 {
	bin := leastBins[bits.Len32(a.now-touched)]
	for touched < a.starts[bin] {
		bin++
	}
	return bin
}
