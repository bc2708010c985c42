package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"
)

// problem is what is wrong with a line, before file and line are known.
type problem struct {
	what, remedy string
	cut          bool // the line ends too soon
}

const example = `write lines like {"timestamp": 0, "input_length": 700, "output_length": 10, "hash_ids": [1, 2]}`

// Fields of a line: those of Mooncake in the order that it writes them, and
// optional ones, described in docs/traces.md.
const (
	fieldTimestamp = iota
	fieldInput
	fieldOutput
	fieldHashes
	fieldDelay   // milliseconds after the session's request before
	fieldSession // any value, the same for the requests of a session
	fieldGroup   // likewise, on the first line of a session at least
	fieldShared  // number of leading hash ids that belong to a shared prompt
	fieldPause   // milliseconds from the answer to the session's next request
	fieldCount
)

var fields = [fieldCount]string{"timestamp", "input_length", "output_length", "hash_ids", "delay", "session_id", "group_id", "shared_blocks", "pause"}

// parsed is what a line has, beside what is in the request.
type parsed struct {
	found   [fieldCount]bool
	has     [fieldCount]bool // found, with another value than null
	delay   int64
	session gjson.Result // part of the line
	group   gjson.Result // likewise
}

// conversation is what a Reader keeps of a session.
type conversation struct {
	name, group string
	last        int64 // timestamp of the request before
	begun       bool
	head        uint64 // first id of its first prompt, once begun

	// Of aiperf's form, whose lines have a turn's new tokens only:
	first  []uint64 // ids of the first prompt
	opened int      // its tokens
	tokens int      // tokens of the prompt and answer before
}

// parse reads one line into req, completes it and checks that it makes sense.
func (r *Reader) parse(line []byte, req *Request) *problem {
	*req = Request{Hashes: req.Hashes[:0]}
	switch {
	case bytes.HasPrefix(bytes.TrimSpace(line), []byte("[")):
		return &problem{what: "a list begins here, want an object", remedy: "write one request a line, as jq -c '.[]' FILE does"}
	case !json.Valid(line):
		return invalid(line)
	}
	whole := gjson.Parse(unsafe.String(unsafe.SliceData(line), len(line))) // the line stays as it is until the next one
	if !whole.IsObject() {
		return unexpected(whole, "an object")
	}
	var has parsed
	var p *problem
	whole.ForEach(func(key, value gjson.Result) bool {
		if at := slices.Index(fields[:], key.Str); at >= 0 {
			p = r.field(at, value, &has, req)
		}
		return p == nil
	})
	if p != nil {
		return p
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
	c := r.conversation(&has)
	r.date(req, &has, c)
	if c != nil {
		req.Session, req.Group = c.name, c.group
	}
	if p := r.check(req); p != nil {
		return p
	}
	switch {
	case c == nil || len(req.Hashes) == 0:
	case r.o.Form == Aiperf:
		return r.extend(req, c)
	case !c.begun:
		c.begun, c.head = true, req.Hashes[0]
	case has.has[fieldDelay] && req.Hashes[0] != c.head:
		r.made.OtherHeads++
	}
	return nil
}

// conversation returns the session of a line, nil if it names none.
func (r *Reader) conversation(has *parsed) *conversation {
	if !has.has[fieldSession] {
		return nil
	}
	c := r.sessions[has.session.Raw]
	if c == nil {
		c = &conversation{name: plain(has.session), last: r.last}
		r.sessions[strings.Clone(has.session.Raw)] = c
	}
	if c.group == "" && has.has[fieldGroup] {
		c.group = plain(has.group)
	}
	return c
}

// plain is the text of a value, without quotes, apart from the line.
func plain(v gjson.Result) string { return strings.Clone(v.String()) }

// invalid is what is wrong with a line that is not JSON.
func invalid(line []byte) *problem {
	err := json.Unmarshal(line, new(any))
	at, ok := errors.AsType[*json.SyntaxError](err)
	if ok && at.Offset == int64(len(line)) && strings.HasPrefix(at.Error(), "unexpected end") {
		return &problem{what: "ends too soon", remedy: "the line is cut short; " + example, cut: true}
	}
	if !ok {
		return &problem{what: err.Error(), remedy: example}
	}
	return &problem{what: fmt.Sprintf("column %d: %v", at.Offset, at), remedy: example}
}

func unexpected(v gjson.Result, want string) *problem {
	return &problem{what: fmt.Sprintf("column %d has %.40s, want %s", v.Index+1, v.Raw, want), remedy: example}
}

// date gives a request a timestamp, if it has none: that of the request before
// it in its session c, or of the line before, and its delay.
func (r *Reader) date(req *Request, has *parsed, c *conversation) {
	before := r.last
	if c != nil {
		before = c.last
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
	if c != nil {
		c.last = req.Timestamp
	}
}

// check rejects requests that no prompt could have made.
func (r *Reader) check(req *Request) *problem {
	switch n := len(req.Hashes); {
	case req.SharedBlocks > n:
		return &problem{what: fmt.Sprintf("%d blocks are shared, the prompt has %d", req.SharedBlocks, n),
			remedy: "shared_blocks counts the leading hash_ids that belong to a shared prompt"}
	case n == blocks(req.InputTokens, r.o.BlockTokens):
	case n == req.InputTokens/r.o.BlockTokens:
		r.made.FullBlocks++
	default:
		return &problem{
			what: fmt.Sprintf("%d tokens in blocks of %d need %d hash ids, there are %d",
				req.InputTokens, r.o.BlockTokens, blocks(req.InputTokens, r.o.BlockTokens), n),
			remedy: "pass how many tokens a block of this trace has" + fitting(req.InputTokens, n) + ", or correct the line"}
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

// field reads the value of a known field.
func (r *Reader) field(at int, v gjson.Result, has *parsed, req *Request) (p *problem) {
	if has.found[at] {
		return &problem{what: fmt.Sprintf("field %q appears twice", fields[at]), remedy: "keep one of them"}
	}
	has.found[at] = true
	if v.Type == gjson.Null {
		return nil
	}
	has.has[at] = true
	switch at {
	case fieldHashes:
		return r.hashes(v, req)
	case fieldSession:
		has.session = v
		return nil
	case fieldGroup:
		has.group = v
		return nil
	}
	f := numeral{name: fields[at], most: math.MaxInt32, unit: 1}
	if at == fieldTimestamp || at == fieldDelay || at == fieldPause {
		f.most, f.unit, f.fractions = math.MaxInt64, r.o.unit(), true
	}
	n, p := r.number(v, f)
	switch at {
	case fieldTimestamp:
		req.Timestamp = int64(n)
	case fieldDelay:
		has.delay = int64(n)
	case fieldInput:
		req.InputTokens = int(n)
	case fieldOutput:
		req.OutputTokens = int(n)
	case fieldShared:
		req.SharedBlocks = int(n)
	case fieldPause:
		req.Pause = int64(n)
	}
	return p
}

// hashes reads the list of hash ids.
func (r *Reader) hashes(list gjson.Result, req *Request) (p *problem) {
	if !list.IsArray() {
		return unexpected(list, "a list of hash ids")
	}
	list.ForEach(func(_, v gjson.Result) bool {
		var n uint64
		n, p = r.hashID(v)
		req.Hashes = append(req.Hashes, n)
		return p == nil
	})
	return p
}

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

// number reads a number from 0 to most, in quotes or not. Whole numbers, nearly
// all, take the short way.
func (r *Reader) number(v gjson.Result, f numeral) (uint64, *problem) {
	text := v.Raw
	if v.Type == gjson.String {
		r.made.QuotedNumbers++
		if text = v.Str; !gjson.Valid(text) {
			return 0, unexpected(v, "a whole number, not negative, for "+f.name)
		}
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil && n <= f.most/f.unit {
		return n * f.unit, nil
	}
	x, err := strconv.ParseFloat(text, 64)
	x *= float64(f.unit)
	switch {
	case err != nil, x < 0, !f.fractions && x != math.Trunc(x):
		return 0, unexpected(v, "a whole number, not negative, for "+f.name)
	case x > float64(f.most) || x >= math.MaxInt64:
		return 0, &problem{what: fmt.Sprintf("%s is above %d", f.name, f.most/f.unit), remedy: "correct the value"}
	case x != math.Trunc(x):
		r.made.Fractions++
	}
	return uint64(math.Round(x)), nil
}

// hashID reads one hash id: a whole number or, of systems that hash with others,
// a negative one or text, for which 64 bits stand.
func (r *Reader) hashID(v gjson.Result) (uint64, *problem) {
	if v.Type == gjson.String {
		text := v.Raw[1 : len(v.Raw)-1]
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			r.made.QuotedNumbers++
			return n, nil
		}
		r.made.TextIDs++
		return textID(text), nil
	}
	if strings.HasPrefix(v.Raw, "-") {
		if n, err := strconv.ParseInt(v.Raw, 10, 64); err == nil {
			r.made.TextIDs++
			return uint64(n), nil
		}
	}
	n, p := r.number(v, numeral{name: "hash_ids", most: math.MaxUint64, unit: 1})
	if p == nil && n >= exact && strings.ContainsAny(v.Raw, ".eE") {
		return 0, &problem{what: fmt.Sprintf("hash id %s is beyond what a float distinguishes", v.Raw), remedy: "write hash ids as whole numbers or as text"}
	}
	return n, p
}

// textID stands for text.
func textID(text string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, text) // never fails
	return scramble(h.Sum64())
}

// scramble spreads what differs over all bits.
func scramble(x uint64) uint64 {
	x = (x ^ x>>32) * salt
	x = (x ^ x>>32) * salt
	return x ^ x>>32
}
