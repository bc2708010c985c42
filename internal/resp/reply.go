package resp

import (
	"fmt"
	"strconv"
)

// Kind is the type of a Reply.
type Kind uint8

// The kinds of replies. What RESP3 adds is mapped to the nearest of them where
// that loses nothing: a verbatim string is a Bulk, a set or push an Array.
const (
	KindNull Kind = iota
	KindSimple
	KindBulk
	KindInt
	KindDouble
	KindBool
	KindArray
	KindMap // Elems holds keys and values in turn
	KindError
)

// Reply is one value that a server sent. It owns its memory.
type Reply struct {
	Kind  Kind
	Str   []byte  // KindSimple, KindBulk, KindError
	Int   int64   // KindInt; 1 or 0 for KindBool
	Float float64 // KindDouble
	Elems []Reply // KindArray, KindMap
}

// Null reports whether there is no value.
func (r Reply) Null() bool { return r.Kind == KindNull }

// Text returns the reply as a string: that of Str, a number's digits, else "".
func (r Reply) Text() string {
	switch r.Kind {
	case KindInt, KindBool:
		return strconv.FormatInt(r.Int, 10)
	case KindDouble:
		return strconv.FormatFloat(r.Float, 'g', -1, 64)
	}
	return string(r.Str)
}

// Field returns the value of a key of a map, in either protocol's form; null
// when there is none.
func (r Reply) Field(key string) Reply {
	for i := 0; i+1 < len(r.Elems); i += 2 {
		if string(r.Elems[i].Str) == key {
			return r.Elems[i+1]
		}
	}
	return Reply{}
}

// Bounds of one reply that is read into memory.
const (
	maxDepth = 16
	maxElems = 4 << 20 // values of one reply, however nested
)

// reply reads one value. left counts how many values it may still contain.
func (in *input) reply(depth int, left *int) (Reply, error) {
	if *left--; depth > maxDepth || *left < 0 {
		return Reply{}, in.bad("reply is nested too deep or has too many values")
	}
	kind, body, err := in.head()
	if err != nil {
		return Reply{}, err
	}
	switch kind {
	case '+', '(': // a big number stays text
		return Reply{Kind: KindSimple, Str: append([]byte{}, body...)}, nil
	case '-':
		return Reply{Kind: KindError, Str: append([]byte{}, body...)}, nil
	case '_':
		return Reply{}, nil
	case ':':
		n, err := strconv.ParseInt(string(body), 10, 64)
		if err != nil {
			return Reply{}, in.bad("invalid integer")
		}
		return Reply{Kind: KindInt, Int: n}, nil
	case ',':
		f, err := strconv.ParseFloat(string(body), 64)
		if err != nil {
			return Reply{}, in.bad("invalid double")
		}
		return Reply{Kind: KindDouble, Float: f}, nil
	case '#':
		if string(body) != "t" && string(body) != "f" {
			return Reply{}, in.bad("invalid boolean")
		}
		r := Reply{Kind: KindBool}
		if body[0] == 't' {
			r.Int = 1
		}
		return r, nil
	case '$', '=', '!':
		return in.bulkReply(kind, body)
	case '*', '~', '>', '%', '|':
		return in.aggregate(kind, body, depth, left)
	}
	return Reply{}, in.bad(fmt.Sprintf("unknown reply type %q", kind))
}

// head reads the first line of a reply; body dies with the next read.
func (in *input) head() (kind byte, body []byte, err error) {
	p, crlf, err := in.line("reply line is too long")
	if err != nil {
		return 0, nil, err
	}
	if len(p) == 0 || !crlf {
		return 0, nil, in.bad("reply does not begin with a type and end with CRLF")
	}
	return p[0], p[1:], nil
}

// bulkSize parses the size of a bulk; -1 is null.
func (in *input) bulkSize(body []byte) (int64, error) {
	if string(body) == "-1" {
		return -1, nil
	}
	n, ok := number(body)
	if !ok || n > MaxBulk {
		return 0, in.bad("invalid bulk length")
	}
	return n, nil
}

func (in *input) bulkReply(kind byte, body []byte) (Reply, error) {
	n, err := in.bulkSize(body)
	if err != nil || n < 0 {
		return Reply{}, err
	}
	p, err := in.grow(n)
	if err != nil {
		return Reply{}, err
	}
	if err := in.crlf(); err != nil {
		return Reply{}, err
	}
	switch {
	case kind == '!':
		return Reply{Kind: KindError, Str: p}, nil
	case kind == '=' && len(p) >= 4:
		p = p[4:] // "txt:"
	}
	return Reply{Kind: KindBulk, Str: p}, nil
}

// grow reads n bytes into new memory that never gets far ahead of what has
// arrived, so that a false size costs nothing.
func (in *input) grow(n int64) ([]byte, error) {
	const step = 1 << 20
	p := make([]byte, 0, min(n, step))
	for int64(len(p)) < n {
		if len(p) == cap(p) {
			q := make([]byte, len(p), min(n, 2*int64(cap(p))))
			copy(q, p)
			p = q
		}
		at := len(p)
		p = p[:min(int64(cap(p)), n)]
		if err := in.full(p[at:]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (in *input) aggregate(kind byte, body []byte, depth int, left *int) (Reply, error) {
	if kind == '*' && string(body) == "-1" {
		return Reply{}, nil
	}
	n, ok := number(body)
	if !ok || n > maxElems {
		return Reply{}, in.bad("invalid aggregate length")
	}
	r := Reply{Kind: KindArray}
	if kind == '%' || kind == '|' {
		r.Kind, n = KindMap, 2*n
	}
	r.Elems = make([]Reply, 0, min(n, 64))
	for range n {
		e, err := in.reply(depth+1, left)
		if err != nil {
			return Reply{}, unexpected(err)
		}
		r.Elems = append(r.Elems, e)
	}
	if kind == '|' { // attributes of the reply that follows
		return in.reply(depth+1, left)
	}
	return r, nil
}

// value reads a reply that should be a bulk string into dst. What is larger
// than dst is read and dropped.
func (in *input) value(dst []byte) (int, error) {
	kind, body, err := in.head()
	if err != nil {
		return 0, err
	}
	switch kind {
	case '-':
		return 0, &ServerError{Text: string(body)}
	case '_':
		return 0, ErrNull
	case '$':
	default:
		return 0, in.bad(fmt.Sprintf("expected a bulk string, got reply type %q", kind))
	}
	n, err := in.bulkSize(body)
	switch {
	case err != nil:
		return 0, err
	case n < 0:
		return 0, ErrNull
	case n > int64(len(dst)):
		if err := in.discard(n); err != nil {
			return 0, err
		}
		if err := in.crlf(); err != nil {
			return 0, err
		}
		return int(n), fmt.Errorf("%w: value has %d bytes, buffer %d", ErrShortBuffer, n, len(dst))
	}
	if err := in.full(dst[:n]); err != nil {
		return 0, err
	}
	return int(n), in.crlf()
}
