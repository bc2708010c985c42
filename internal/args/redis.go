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
func ParseSet(args [][]byte, now time.Time) (o Set, bad string) {
	for i := 0; i < len(args); i++ {
		switch word := strings.ToUpper(string(args[i])); word {
		case "NX", "XX":
			if o.When != cascade.Always {
				return o, Syntax
			}
			o.When = cascade.IfAbsent
			if word == "XX" {
				o.When = cascade.IfPresent
			}
		case "KEEPTTL":
			o.Keep = true
		case "EX", "PX", "EXAT", "PXAT":
			i++
			if i == len(args) || !o.Expires.IsZero() {
				return o, Syntax
			}
			if o.Expires, bad = Expiry(word, string(args[i]), now); bad != "" {
				return o, bad
			}
		default:
			return o, Syntax
		}
	}
	if o.Keep && !o.Expires.IsZero() {
		return o, Syntax
	}
	return o, ""
}

// MaxSeconds bounds times to live, in seconds: beyond the year 2200, what
// time.Time.Add can still take.
const MaxSeconds = 1 << 33

// expiry reads the value of EX, PX, EXAT or PXAT.
func Expiry(word, text string, now time.Time) (at time.Time, bad string) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, Number
	}
	unit := time.Second
	if word[0] == 'P' {
		unit = time.Millisecond
	}
	if n <= 0 || n > MaxSeconds*int64(time.Second/unit) {
		return time.Time{}, "ERR invalid expire time in 'set' command"
	}
	if strings.HasSuffix(word, "AT") {
		return time.UnixMilli(n * int64(unit/time.Millisecond)), ""
	}
	return now.Add(time.Duration(n) * unit), ""
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
func ParseScan(args [][]byte) (o Scan, bad string) {
	o.Count = 10
	if len(args)%2 != 0 {
		return o, Syntax
	}
	for i := 0; i < len(args); i += 2 {
		value := string(args[i+1])
		switch strings.ToUpper(string(args[i])) {
		case "MATCH":
			g, ok := glob.Compile(value)
			if !ok {
				return o, Pattern
			}
			o.Match = &g
		case "TYPE":
			o.Kind = strings.ToLower(value)
		case "COUNT":
			n, err := strconv.Atoi(value)
			if err != nil {
				return o, Number
			}
			if n < 1 {
				return o, Syntax
			}
			o.Count = min(n, maxScan)
		default:
			return o, Syntax
		}
	}
	return o, ""
}

// Hello are HELLO's words after the version.
type Hello struct {
	User, Password, Name string
	Auth, Named          bool // which of them are given
}

// ParseHello reads HELLO's words after the version.
func ParseHello(args [][]byte) (o Hello, ok bool) {
	for i := 0; i < len(args); i++ {
		switch word := strings.ToUpper(string(args[i])); {
		case word == "AUTH" && i+2 < len(args):
			o.Auth, o.User, o.Password = true, string(args[i+1]), string(args[i+2])
			i += 2
		case word == "SETNAME" && i+1 < len(args):
			o.Named, o.Name = true, string(args[i+1])
			i++
		default:
			return o, false
		}
	}
	return o, true
}
