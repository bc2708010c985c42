package args

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/glob"
)

// Set are SET's words after the value.
type Set struct {
	Expires time.Time // zero: never
	Keep    bool      // the expiry that the key has
	When    cascade.Condition
}

// ParseSet reads SET's words after the value.
func ParseSet(args [][]byte, now time.Time) (s Set, bad string) {
	o := options{rest: args, now: now}
	for o.next() {
		switch o.word {
		case "NX", "XX":
			if s.When != cascade.Always {
				o.fail(Syntax)
			}
			s.When = cascade.IfAbsent
			if o.word == "XX" {
				s.When = cascade.IfPresent
			}
		case "KEEPTTL":
			s.Keep = true
		case "EX", "PX", "EXAT", "PXAT":
			if !s.Expires.IsZero() {
				o.fail(Syntax)
			}
			s.Expires = o.expiry()
		default:
			o.fail(Syntax)
		}
	}
	if s.Keep && !s.Expires.IsZero() {
		o.fail(Syntax)
	}
	return s, o.bad
}

// Pattern answers a pattern that is too long.
var Pattern = fmt.Sprintf("ERR pattern is too long: use at most %d bytes", glob.MaxPattern)

// Scan are SCAN's words after the cursor.
type Scan struct {
	Match *glob.Glob // nil: every key
	Kind  string     // of values; "": all
	Count int        // keys that are looked at
}

// maxScan bounds how many names one SCAN looks at.
const maxScan = 10_000

// ParseScan reads SCAN's words after the cursor.
func ParseScan(args [][]byte) (s Scan, bad string) {
	s.Count = 10
	o := options{rest: args}
	for o.next() {
		switch o.word {
		case "MATCH":
			g, ok := glob.Compile(o.value())
			if !ok {
				o.fail(Pattern)
			}
			s.Match = &g
		case "TYPE":
			s.Kind = strings.ToLower(o.value())
		case "COUNT":
			n, err := strconv.Atoi(o.value())
			if err != nil {
				o.fail(Number)
			} else if n < 1 {
				o.fail(Syntax)
			}
			s.Count = min(n, maxScan)
		default:
			o.fail(Syntax)
		}
	}
	return s, o.bad
}

// Hello are HELLO's words after its name.
type Hello struct {
	User, Password, Name string
	Auth, Named          bool // which of them are given
	Proto                int  // 0: as it is
}

// ParseHello reads HELLO's words after its name; bad is the error to answer with, "" for none.
func ParseHello(words [][]byte) (h Hello, bad string) {
	if len(words) == 0 {
		return h, ""
	}
	var err error
	if h.Proto, err = strconv.Atoi(string(words[0])); err != nil {
		return h, "ERR Protocol version is not an integer or out of range"
	}
	if h.Proto != 2 && h.Proto != 3 {
		return h, "NOPROTO unsupported protocol version"
	}
	o := options{rest: words[1:]}
	for o.next() {
		switch o.word {
		case "AUTH":
			h.Auth, h.User, h.Password = true, o.value(), o.value()
		case "SETNAME":
			h.Named, h.Name = true, o.value()
		default:
			o.fail(Syntax)
		}
	}
	if o.bad != "" {
		return h, "ERR Syntax error in HELLO"
	}
	return h, ""
}
