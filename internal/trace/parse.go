package trace

import (
	"compress/flate"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
)

// problem is what is wrong with a line, before file and line are known.
type problem struct{ what, remedy string }

const example = `write lines like {"timestamp": 0, "input_length": 700, "output_length": 10, "hash_ids": [1, 2]}`

// Fields of a line, in the order Mooncake writes them.
var fields = [...]string{"timestamp", "input_length", "output_length", "hash_ids"}

// parse reads one line into req and checks that it makes sense.
func (r *Reader) parse(line []byte, req *Request) *problem {
	req.Hashes = req.Hashes[:0]
	s := scanner{in: line}
	var found [len(fields)]bool
	for first := true; ; first = false {
		key, p := s.next(first)
		if key == nil && p == nil {
			break
		}
		if p == nil {
			p = s.value(key, &found, req)
		}
		if p != nil {
			return p
		}
	}
	for i, ok := range found {
		if !ok {
			return &problem{fmt.Sprintf("field %q is missing", fields[i]), example}
		}
	}
	return r.check(req)
}

// check rejects requests that no prompt could have made.
func (r *Reader) check(req *Request) *problem {
	if want := blocks(req.InputTokens, r.o.BlockTokens); want != len(req.Hashes) {
		return &problem{
			fmt.Sprintf("%d tokens in blocks of %d need %d hash ids, there are %d",
				req.InputTokens, r.o.BlockTokens, want, len(req.Hashes)),
			"tell the reader how many tokens a block of this trace has, or correct the line"}
	}
	clear(r.seen)
	for _, h := range req.Hashes {
		if _, ok := r.seen[h]; ok {
			return &problem{fmt.Sprintf("hash id %d appears twice", h),
				"an id stands for a block and all before it, so make ids of prefixes, not of single blocks"}
		}
		r.seen[h] = struct{}{}
	}
	return nil
}

// value reads the value of the field called key.
func (s *scanner) value(key []byte, found *[len(fields)]bool, req *Request) *problem {
	for at, name := range fields {
		if name != string(key) {
			continue
		}
		if found[at] {
			return &problem{fmt.Sprintf("field %q appears twice", name), "keep one of them"}
		}
		found[at] = true
		return s.field(at, req)
	}
	return s.skip()
}

// field reads the value of a known field.
func (s *scanner) field(at int, req *Request) *problem {
	if fields[at] == "hash_ids" {
		return s.hashes(req)
	}
	limit := uint64(math.MaxInt32)
	if fields[at] == "timestamp" {
		limit = math.MaxInt64
	}
	n, p := s.number(fields[at], limit)
	switch fields[at] {
	case "timestamp":
		req.Timestamp = int64(n)
	case "input_length":
		req.InputTokens = int(n)
	case "output_length":
		req.OutputTokens = int(n)
	}
	return p
}

// scanner walks one line of JSON without building values. It accepts no more
// than encoding/json does.
type scanner struct {
	in []byte
	at int
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for ; s.at < len(s.in); s.at++ {
		switch c := s.in[s.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// take skips white space and consumes c if it is next.
func (s *scanner) take(c byte) bool {
	if s.peek() != c || s.at == len(s.in) {
		return false
	}
	s.at++
	return true
}

func (s *scanner) unexpected(want string) *problem {
	if s.peek(); s.at >= len(s.in) {
		return &problem{"ends where " + want + " should follow", "the line is cut short; " + example}
	}
	return &problem{fmt.Sprintf("column %d has %q, want %s", s.at+1, s.in[s.at], want), example}
}

// next returns the key of the next field of the object that is the whole line,
// nil after the last one.
func (s *scanner) next(first bool) ([]byte, *problem) {
	if first && !s.take('{') {
		return nil, s.unexpected("an object")
	}
	end := s.take('}')
	switch {
	case end:
		if s.peek(); s.at < len(s.in) {
			return nil, s.unexpected("nothing more on this line")
		}
		return nil, nil
	case !first && !s.take(','):
		return nil, s.unexpected("a comma or the object's end")
	}
	return s.key()
}

// key reads a field's name and the colon.
func (s *scanner) key() ([]byte, *problem) {
	end := s.stringEnd()
	start := s.at
	if end < 0 {
		return nil, s.unexpected("a field's name in quotes")
	}
	key := s.in[start+1 : end-1]
	if !plain(key) {
		var decoded string
		if err := json.Unmarshal(s.in[start:end], &decoded); err != nil {
			return nil, &problem{fmt.Sprintf("column %d: %v", start+1, err), example}
		}
		key = []byte(decoded)
	}
	s.at = end
	if !s.take(':') {
		return nil, s.unexpected("a colon")
	}
	return key, nil
}

// plain reports whether a string stands for itself: printable ASCII, nothing escaped.
func plain(b []byte) bool {
	for _, c := range b {
		if c < 0x20 || c >= 0x80 || c == '\\' {
			return false
		}
	}
	return true
}

// stringEnd returns the index after the string that starts here, -1 if none does.
func (s *scanner) stringEnd() int {
	if s.peek() != '"' {
		return -1
	}
	for i := s.at + 1; i < len(s.in); i++ {
		switch s.in[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// hashes reads the list of hash ids.
func (s *scanner) hashes(req *Request) *problem {
	if !s.take('[') {
		return s.unexpected("a list of hash ids")
	}
	if s.take(']') {
		return nil
	}
	for {
		n, p := s.number("hash_ids", math.MaxUint64)
		if p != nil {
			return p
		}
		req.Hashes = append(req.Hashes, n)
		if s.take(']') {
			return nil
		}
		if !s.take(',') {
			return s.unexpected("a comma or the list's end")
		}
	}
}

// number reads a whole number from 0 to limit.
func (s *scanner) number(name string, limit uint64) (uint64, *problem) {
	s.peek()
	start := s.at
	var n uint64
	for ; s.at < len(s.in) && s.in[s.at]-'0' <= 9; s.at++ {
		hi, lo := bits.Mul64(n, 10)
		sum, carry := bits.Add64(lo, uint64(s.in[s.at]-'0'), 0)
		if hi != 0 || carry != 0 || sum > limit {
			return 0, &problem{fmt.Sprintf("%s is above %d", name, limit), "correct the value"}
		}
		n = sum
	}
	switch digits := s.in[start:s.at]; {
	case len(digits) == 0:
		return 0, s.unexpected("a whole number, not negative, for " + name)
	case len(digits) > 1 && digits[0] == '0':
		return 0, &problem{name + " starts with a zero", "write numbers without leading zeros"}
	}
	if s.at < len(s.in) && (s.in[s.at] == '.' || s.in[s.at]|0x20 == 'e') {
		return 0, s.unexpected("a whole number for " + name)
	}
	return n, nil
}

// skip passes over the value of a field that means nothing here.
func (s *scanner) skip() *problem {
	s.peek()
	start, depth := s.at, 0
	for ; s.at < len(s.in); s.at++ {
		switch c := s.in[s.at]; c {
		case '"':
			end := s.stringEnd()
			if end < 0 {
				return &problem{fmt.Sprintf("column %d starts a string that does not end", s.at+1), example}
			}
			s.at = end - 1
			continue
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		}
		if depth < 0 || depth == 0 && s.in[s.at] == ',' {
			break
		}
		if depth == 0 && (s.in[s.at] == '}' || s.in[s.at] == ']') {
			s.at++
			break
		}
	}
	if !json.Valid(s.in[start:s.at]) {
		s.at = start
		return s.unexpected("a value in JSON")
	}
	return nil
}

// isGzip tells damage of the compression from failures to read the file.
func isGzip(err error) bool {
	var corrupt flate.CorruptInputError
	return errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &corrupt)
}
