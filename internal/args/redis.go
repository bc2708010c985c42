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

// Hello are HELLO's words after the version.
type Hello struct {
	User, Password, Name string
	Auth, Named          bool // which of them are given
}

// ParseHello reads HELLO's words after the version.
func ParseHello(args [][]byte) (h Hello, ok bool) {
	o := options{rest: args}
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
	return h, o.bad == ""
}
