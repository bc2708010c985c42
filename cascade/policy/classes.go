package policy

import (
	"math/bits"
	"time"
)

// class is what is known of a block at its last use, as a number of mixed radix. The first digit
// says most about when the block is used next.
type class uint16

// The digits of a class. Those of the levels above it are fewer: the first is all blocks.
const (
	useDigits    = 16 // log₂ of the uses, or of the conversations that share the block
	gapDigits    = 8  // time between the last two uses
	turnDigits   = 8  // turn of the conversation, or that the block is the last of the request
	lengthDigits = 8  // log₂ of the blocks of the request

	classLevels = 5
)

// below is how many classes of the lowest level one of each level stands for.
var below = [classLevels]int{useDigits * gapDigits * turnDigits * lengthDigits, gapDigits * turnDigits * lengthDigits, turnDigits * lengthDigits, lengthDigits, 1}

// classesAt is how many classes a level has.
func classesAt(level int) int { return below[0] / below[level] }

// at is the class of a level that c belongs to.
func (c class) at(level int) int { return int(c) / below[level] }

// classOf returns the class of a block as of a use: gap is the time since the one before,
// in ticks, if there was one.
func classOf(e *history, gap uint32, last bool) class {
	use, turn := log2(int(e.touches), useDigits/2-1), turnDigits-1
	if e.sessions > 1 {
		use = useDigits/2 + log2(int(e.sessions), useDigits/2-1)
	}
	if !last {
		turn = turnDigit(int(e.turn))
	}
	c := use
	c = c*gapDigits + gapDigit(e, gap)
	c = c*turnDigits + turn
	c = c*lengthDigits + log2(int(e.length), lengthDigits-1)
	return class(c)
}

// gapDigit is 0 for a first use, and then the time since the last one: below 8 seconds, 16
// and so on. Conversations that share a block come independently of each other: of those
// the digit only says whether it was two minutes.
func gapDigit(e *history, gap uint32) int {
	if e.touches < 2 {
		return 0
	}
	digit := 1 + log2(int(time.Duration(gap)*tick/(4*time.Second)), gapDigits-2)
	switch {
	case e.sessions < 2:
		return digit
	case digit < 6:
		return 0
	}
	return 1
}

// turnDigit is for turns 1, 2, 3, 4-5, 6-8 and more.
func turnDigit(turn int) int {
	switch {
	case turn <= 3:
		return max(turn, 1) - 1
	case turn <= 5:
		return 3
	case turn <= 8:
		return 4
	}
	return 5
}

// log2 is the logarithm of n rounded down, 0 for none and most at most.
func log2(n, most int) int { return min(max(bits.Len(uint(n))-1, 0), most) }
