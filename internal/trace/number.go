package trace

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"strconv"
)

// numeral reports which numbers a field may have.
type numeral struct {
	name      string
	most      uint64
	unit      uint64 // what 1 stands for
	fractions bool   // are rounded, not refused
}

// exact is the least whole number that float64, and so many who write JSON,
// cannot distinguish from its neighbour.
const exact = 1 << 53

// number reads a number from 0 to most. Whole numbers, nearly all, take the short
// way.
func (s *scanner) number(f numeral) (uint64, *problem) {
	s.peek()
	start := s.at
	n, p := s.digits(f)
	if p != nil {
		return 0, p
	}
	if s.at > start && (s.at == len(s.in) || s.in[s.at] != '.' && s.in[s.at]|0x20 != 'e') {
		return n, nil
	}
	s.at = start
	text, p := s.numeral(f.name)
	if p != nil {
		return 0, p
	}
	x, err := strconv.ParseFloat(string(text), 64)
	x *= float64(f.unit)
	switch {
	case err != nil || !json.Valid(text), x < 0, !f.fractions && x != math.Trunc(x):
		s.at = start
		return 0, s.unexpected("a whole number, not negative, for " + f.name)
	case x > float64(f.most) || x >= math.MaxInt64:
		return 0, f.above()
	case x != math.Trunc(x):
		s.made.Fractions++
	}
	return uint64(math.Round(x)), nil
}

func (f numeral) above() *problem {
	return &problem{what: fmt.Sprintf("%s is above %d", f.name, f.most/f.unit), remedy: "correct the value"}
}

// digits reads decimal digits, if there are any.
func (s *scanner) digits(f numeral) (uint64, *problem) {
	start := s.at
	var n uint64
	for ; s.at < len(s.in) && s.in[s.at]-'0' <= 9; s.at++ {
		hi, lo := bits.Mul64(n, 10)
		sum, carry := bits.Add64(lo, uint64(s.in[s.at]-'0'), 0)
		if hi != 0 || carry != 0 || sum > f.most/f.unit {
			return 0, f.above()
		}
		n = sum
	}
	if d := s.in[start:s.at]; len(d) > 1 && d[0] == '0' {
		return 0, &problem{what: f.name + " starts with a zero", remedy: "write numbers without leading zeros"}
	}
	return n * f.unit, nil
}

// numeral returns the text of a number, or what is in quotes.
func (s *scanner) numeral(name string) ([]byte, *problem) {
	start := s.at
	if end := s.stringEnd(); end > 0 {
		s.at = end
		s.made.QuotedNumbers++
		return s.in[start+1 : end-1], nil
	}
	for s.at < len(s.in) && (s.in[s.at]-'0' <= 9 || s.in[s.at] == '.' || s.in[s.at] == '-' || s.in[s.at] == '+' || s.in[s.at]|0x20 == 'e') {
		s.at++
	}
	if s.at == start {
		return nil, s.unexpected("a whole number, not negative, for " + name)
	}
	return s.in[start:s.at], nil
}

// hashID reads one hash id: a whole number or, of systems that hash with others,
// a negative one or text, for which 64 bits stand.
func (s *scanner) hashID() (uint64, *problem) {
	s.peek()
	start := s.at
	if s.at < len(s.in) && s.in[s.at]-'0' <= 9 {
		n, p := s.number(numeral{name: "hash_ids", most: math.MaxUint64, unit: 1})
		if p == nil && n >= exact && !digitsOnly(s.in[start:s.at]) {
			return 0, &problem{what: fmt.Sprintf("hash id %s is beyond what a float tells apart", s.in[start:s.at]),
				remedy: "write hash ids as whole numbers or as text"}
		}
		return n, p
	}
	text, p := s.numeral("hash_ids")
	if p != nil {
		return 0, p
	}
	if n, err := strconv.ParseUint(string(text), 10, 64); err == nil {
		return n, nil // in quotes
	}
	quoted := s.in[start] == '"'
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil && !quoted {
		s.made.TextIDs++
		return uint64(n), nil
	}
	if !quoted || !json.Valid(s.in[start:s.at]) {
		s.at = start
		return 0, s.unexpected("a hash id: a whole number or text")
	}
	s.made.QuotedNumbers-- // it is none
	s.made.TextIDs++
	h := fnv.New64a()
	_, _ = h.Write(text) // never fails
	return scramble(h.Sum64()), nil
}

func digitsOnly(text []byte) bool {
	for _, c := range text {
		if c-'0' > 9 {
			return false
		}
	}
	return true
}

// scramble spreads what differs over all bits.
func scramble(x uint64) uint64 {
	x = (x ^ x>>32) * salt
	x = (x ^ x>>32) * salt
	return x ^ x>>32
}
