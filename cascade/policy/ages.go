package policy

import (
	"math"
	"time"
)

// tick is the unit in which ages are kept: 17 ms, so that 32 bits last for two years.
const tick = 1 << 24 * time.Nanosecond

// ticks returns a time as a number of ticks.
func ticks(d time.Duration) uint32 { return uint32(max(d, 0) / tick) }

// Ages are divided into bins, each longer than the one before by the same factor: what
// an age of a minute says of the next one, an age of an hour says of the next hour.
const (
	ageBins    = 36
	firstBin   = 0.25 // seconds
	binFactor  = 1.45
	unknownAge = ageBins // the bin of a block whose age is not known
)

var (
	binEnds   [ageBins]uint32  // ticks at which a bin ends; the last one never does
	binWidths [ageBins]float64 // seconds
)

func init() {
	begin, end := 0.0, firstBin
	for i := range ageBins {
		binEnds[i], binWidths[i] = uint32(math.Ceil(end*float64(time.Second)/float64(tick))), end-begin
		begin, end = end, end*binFactor
	}
	binEnds[ageBins-1] = math.MaxUint32
}
