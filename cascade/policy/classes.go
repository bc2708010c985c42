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
	useDigits    = dueDigit + turnDigits // log₂ of the uses, or of the conversations that share the block, or that it is due
	gapDigits    = 8                     // mean time between its uses
	turnDigits   = 8                     // turn of the conversation, or that the block is the last of the request
	lengthDigits = 8                     // log₂ of the blocks of the request

	sharedDigit = 8  // the first of blocks that are shared: of those that were used once, and an engine marks
	dueDigit    = 16 // the first of blocks of which an engine declares when they are used next: see due

	classLevels = 5
)

// below is how many classes of the lowest level one of each level stands for.
var below = [classLevels]int{useDigits * gapDigits * turnDigits * lengthDigits, gapDigits * turnDigits * lengthDigits, turnDigits * lengthDigits, lengthDigits, 1}

// classesAt is how many classes a level has.
func classesAt(level int) int { return below[0] / below[level] }

// at is the class of a level that c belongs to.
func (c class) at(level int) int { return int(c) / below[level] }

// classOf returns the class of a block as of its last use, as the last of its request or not.
func classOf(e *history, last bool) class {
	use, turn := log2(int(e.touches), sharedDigit-1), turnDigits-1
	if e.sessions > 1 {
		use = sharedDigit + log2(int(e.sessions), dueDigit-sharedDigit-1)
	}
	if !last {
		turn = turnDigit(int(e.turn))
	}
	c := use*gapDigits + gapDigit(e)
	c = c*turnDigits + turn
	return class(c * lengthDigits).ofLength(e.length)
}

// ofLength is class c of a block whose request has so many blocks.
func (c class) ofLength(blocks uint16) class {
	return c - c%lengthDigits + class(log2(int(blocks), lengthDigits-1))
}

// hinted is class c of a block once an engine has declared that it is shared, or when it is due;
// zero: it has not. A mark counts until the block is used once more, which says more. Of a prompt that many
// conversations share each would declare another time. Whether blocks that are due come, and how late,
// is learned as of all classes: what is declared wrongly is soon worth nothing.
func (c class) hinted(e *history, marked bool, due time.Duration) class {
	switch {
	case e.sessions > 1:
		return c
	case due > 0:
		return c.due(ticks(due))
	case marked && e.touches < 2:
		return class(sharedDigit*below[1] + int(c)%below[1])
	}
	return c
}

// Blocks that are due have classes of other digits: first the turn, as it says most where what is
// declared says nothing; then two, in place of the gap and the turn, for the bin of ages in which
// they are due, or the one before; and the length.
const (
	dueBins     = 16
	finerDigits = 2 // bins that share the first of the two digits
)

// due is the class of a block of class c that is due after so many ticks.
func (c class) due(after uint32) class {
	bin, turn := 0, int(c)/lengthDigits%turnDigits
	for bin < dueBins-1 && after >= binEnds[2*bin+1] {
		bin++
	}
	if use := int(c) / below[1]; use >= dueDigit { // it was due already
		turn = use - dueDigit
	}
	d := dueDigit + turn
	d = d*gapDigits + bin/finerDigits
	d = d*turnDigits + bin%finerDigits
	return class(d*lengthDigits + int(c)%lengthDigits)
}

// gapDigit is 0 for a first use, and then the mean time between uses: below 8 seconds, 16 and so on.
// Conversations that share a block come independently of each other: what tells is how often.
func gapDigit(e *history) int {
	if e.touches < 2 {
		return 0
	}
	return 1 + log2(int(time.Duration(e.gap)*tick/(4*time.Second)), gapDigits-2)
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
