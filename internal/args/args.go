package args

import (
	"math"
	"strconv"
	"strings"
	"time"

	"cascadekv/cascade"
)

// Replies to words that are not understood.
const (
	Syntax = "ERR syntax error"
	Number = "ERR value is not an integer or out of range"
)

// Numbers reads integers of at least 0; ok is false when one is none.
func Numbers(args [][]byte) (numbers []int64, ok bool) {
	numbers = make([]int64, len(args))
	for i, a := range args {
		n, err := strconv.ParseInt(string(a), 10, 64)
		if err != nil || n < 0 {
			return nil, false
		}
		numbers[i] = n
	}
	return numbers, true
}

// maxBlockUS bounds what a client may say that a block takes: an hour.
const maxBlockUS = 3600e6

// BlockTime is how long a client says that computing a block takes; ok is false when that is neither
// a number of microseconds nor the word for cascade.Learned.
func BlockTime(word []byte) (d time.Duration, ok bool) {
	if strings.EqualFold(string(word), "auto") {
		return cascade.Learned, true
	}
	numbers, ok := Numbers([][]byte{word})
	if !ok || numbers[0] > maxBlockUS {
		return 0, false
	}
	return time.Duration(numbers[0]) * time.Microsecond, true
}

// options reads the options of a command, a word and often a value behind it, until
// the first that is not understood.
type options struct {
	rest [][]byte
	now  time.Time
	word string // in upper case
	bad  string
}

// next moves on to the next word, or is false.
func (o *options) next() bool {
	if o.bad != "" || len(o.rest) == 0 {
		return false
	}
	o.word = strings.ToUpper(o.value())
	return true
}

func (o *options) fail(bad string) {
	if o.bad == "" {
		o.bad = bad
	}
}

// value returns what follows.
func (o *options) value() (text string) {
	if len(o.rest) == 0 {
		o.fail(Syntax)
		return ""
	}
	text, o.rest = string(o.rest[0]), o.rest[1:]
	return text
}

// number returns the number from 0 on that follows.
func (o *options) number() int64 {
	n, err := strconv.ParseInt(o.value(), 10, 64)
	if err != nil || n < 0 {
		o.fail(Number)
	}
	return n
}

// number32 is number for those of 32 bits.
func (o *options) number32() uint32 {
	n := o.number()
	if n > math.MaxUint32 {
		o.fail(Number)
	}
	return uint32(n)
}

// maxRate bounds tokens per second.
const maxRate = 1e12

// rate returns the number above 0 that follows, with or without decimals.
func (o *options) rate() float64 {
	r, err := strconv.ParseFloat(o.value(), 64)
	if err != nil || !(r > 0 && r <= maxRate) {
		o.fail("ERR a rate is a number above 0 of tokens per second")
	}
	return r
}

// milliseconds returns the time that follows, at most as much as most.
func (o *options) milliseconds(most time.Duration) time.Duration {
	return time.Duration(min(max(o.number(), 0), most.Milliseconds())) * time.Millisecond
}

// MaxSeconds bounds times to live, in seconds: beyond the year 2200, what
// time.Time.Add can still take.
const MaxSeconds = 1 << 33

// expiry reads the value of EX, PX, EXAT or PXAT.
func (o *options) expiry() time.Time {
	unit := time.Second
	if o.word[0] == 'P' {
		unit = time.Millisecond
	}
	n, err := strconv.ParseInt(o.value(), 10, 64)
	switch {
	case err != nil:
		o.fail(Number)
	case n <= 0 || n > MaxSeconds*int64(time.Second/unit):
		o.fail("ERR invalid expire time in 'set' command")
	case strings.HasSuffix(o.word, "AT"):
		return time.UnixMilli(n * int64(unit/time.Millisecond))
	default:
		return o.now.Add(time.Duration(n) * unit)
	}
	return time.Time{}
}
