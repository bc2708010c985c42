package trace

import (
	"compress/flate"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// problem is what is wrong with a line, before file and line are known.
type problem struct {
	what, remedy string
	cut          bool // the line ends too soon
}

const example = `write lines like {"timestamp": 0, "input_length": 700, "output_length": 10, "hash_ids": [1, 2]}`

// Fields of a line: those of Mooncake in the order that it writes them, and
// those by which others say when a request comes.
const (
	fieldTimestamp = iota
	fieldInput
	fieldOutput
	fieldHashes
	fieldDelay   // milliseconds after the session's request before
	fieldSession // any value, the same for the requests of a session
	fieldCount
)

var fields = [fieldCount]string{"timestamp", "input_length", "output_length", "hash_ids", "delay", "session_id"}

// parsed is what a line has, beside what is in the request.
type parsed struct {
	found   [fieldCount]bool
	has     [fieldCount]bool // found, with another value than null
	delay   int64
	session []byte // in JSON
}

// parse reads one line into req, completes it and checks that it makes sense.
func (r *Reader) parse(line []byte, req *Request) *problem {
	*req = Request{Hashes: req.Hashes[:0]}
	s := scanner{in: line, made: &r.made, unit: r.o.unit()}
	var has parsed
	for first := true; ; first = false {
		key, p := s.next(first)
		if key == nil && p == nil {
			break
		}
		if p == nil {
			p = s.value(key, &has, req)
		}
		if p != nil {
			return p
		}
	}
	if !has.has[fieldHashes] {
		return &problem{what: fmt.Sprintf("field %q is missing", fields[fieldHashes]), remedy: example}
	}
	if !has.has[fieldOutput] {
		r.made.NoOutput++
	}
	if !has.has[fieldInput] {
		r.made.NoInput++
		req.InputTokens = len(req.Hashes) * r.o.BlockTokens
	}
	r.date(req, &has)
	return r.check(req)
}

// date gives a request a timestamp, if it has none: that of the request before
// it in its session, and its delay.
func (r *Reader) date(req *Request, has *parsed) {
	var last *int64
	before := r.last
	if has.has[fieldSession] {
		last = r.sessions[string(has.session)]
		if last == nil {
			last = new(int64)
			*last = r.last
			r.sessions[string(has.session)] = last
		}
		before = *last
	}
	switch {
	case has.has[fieldTimestamp]:
	case has.has[fieldDelay]:
		r.made.Delays++
		req.Timestamp = before + min(has.delay, math.MaxInt64-before)
	default:
		r.made.NoTimestamp++
		req.Timestamp = before
	}
	if req.Timestamp < r.last {
		r.made.OutOfOrder++
	}
	r.last = req.Timestamp
	if last != nil {
		*last = req.Timestamp
	}
}

// check rejects requests that no prompt could have made.
func (r *Reader) check(req *Request) *problem {
	switch n := len(req.Hashes); {
	case n == blocks(req.InputTokens, r.o.BlockTokens):
	case n == req.InputTokens/r.o.BlockTokens:
		r.made.FullBlocks++
	default:
		return &problem{
			what: fmt.Sprintf("%d tokens in blocks of %d need %d hash ids, there are %d",
				req.InputTokens, r.o.BlockTokens, blocks(req.InputTokens, r.o.BlockTokens), n),
			remedy: "tell the reader how many tokens a block of this trace has" + fitting(req.InputTokens, n) + ", or correct the line"}
	}
	clear(r.seen)
	for i, h := range req.Hashes {
		for _, again := r.seen[h]; again; _, again = r.seen[h] {
			// Such ids are of single blocks. A prefix has no block twice.
			if h == req.Hashes[i] {
				r.made.RepeatedIDs++
			}
			h = scramble(h ^ scramble(req.Hashes[i-1]+weyl))
		}
		req.Hashes[i] = h
		r.seen[h] = struct{}{}
	}
	return nil
}

// fitting names a size of blocks with which a line makes sense.
func fitting(tokens, ids int) string {
	for size := 1; size <= 1<<16 && ids > 0; size *= 2 {
		if blocks(tokens, size) == ids || tokens/size == ids {
			return fmt.Sprintf(" (%d fits this line)", size)
		}
	}
	return ""
}

// value reads the value of the field called key.
func (s *scanner) value(key []byte, has *parsed, req *Request) *problem {
	for at, name := range fields {
		if name != string(key) {
			continue
		}
		if has.found[at] {
			return &problem{what: fmt.Sprintf("field %q appears twice", name), remedy: "keep one of them"}
		}
		has.found[at] = true
		if s.peek() == 'n' {
			return s.skip() // null, or no JSON
		}
		has.has[at] = true
		return s.field(at, has, req)
	}
	return s.skip()
}

// field reads the value of a known field.
func (s *scanner) field(at int, has *parsed, req *Request) *problem {
	f := numeral{name: fields[at], most: math.MaxInt32, unit: 1}
	switch at {
	case fieldHashes:
		return s.hashes(req)
	case fieldSession:
		s.peek()
		start := s.at
		p := s.skip()
		has.session = s.in[start:s.at]
		return p
	case fieldTimestamp, fieldDelay:
		f.most, f.unit, f.fractions = math.MaxInt64, s.unit, true
	}
	n, p := s.number(f)
	switch at {
	case fieldTimestamp:
		req.Timestamp = int64(n)
	case fieldDelay:
		has.delay = int64(n)
	case fieldInput:
		req.InputTokens = int(n)
	case fieldOutput:
		req.OutputTokens = int(n)
	}
	return p
}

// scanner walks one line of JSON without building values. It accepts no more
// than encoding/json does.
type scanner struct {
	in   []byte
	at   int
	made *Assumed
	unit uint64 // milliseconds of a timestamp's 1
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
		return &problem{what: "ends where " + want + " should follow", remedy: "the line is cut short; " + example, cut: true}
	}
	if s.in[s.at] == '[' && s.at == 0 {
		return &problem{what: "a list begins here, want " + want, remedy: "write one request a line, as jq -c '.[]' FILE does"}
	}
	cut := s.in[s.at] == '"' && s.stringEnd() < 0
	return &problem{what: fmt.Sprintf("column %d has %q, want %s", s.at+1, s.in[s.at], want), remedy: example, cut: cut}
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
			return nil, &problem{what: fmt.Sprintf("column %d: %v", start+1, err), remedy: example}
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
		n, p := s.hashID()
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

// skip passes over the value of a field that means nothing here.
func (s *scanner) skip() *problem {
	s.peek()
	start, depth := s.at, 0
	for ; s.at < len(s.in); s.at++ {
		switch c := s.in[s.at]; c {
		case '"':
			end := s.stringEnd()
			if end < 0 {
				return &problem{what: fmt.Sprintf("column %d starts a string that does not end", s.at+1), remedy: example, cut: true}
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

// isGzip distinguishes damage of the compression from failures to read the file.
func isGzip(err error) bool {
	var corrupt flate.CorruptInputError
	return errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &corrupt)
}
