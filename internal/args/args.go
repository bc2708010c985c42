package args

import (
	"strconv"
	"strings"
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

// Keys returns keys as strings that share one allocation: for calls that ask for
// many and keep none.
func Keys(args [][]byte) []string {
	total := 0
	for _, a := range args {
		total += len(a)
	}
	var all strings.Builder
	all.Grow(total)
	for _, a := range args {
		all.Write(a)
	}
	text, keys := all.String(), make([]string, len(args))
	for i, a := range args {
		keys[i], text = text[:len(a)], text[len(a):]
	}
	return keys
}
