package units

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// ErrDuration marks text that is not a span of time.
var ErrDuration = errors.New("not a duration")

const durationRemedy = `write a number of seconds, or a number with a unit such as 250ms, 60s or 1h30m`

// Duration is a span of time, never negative when parsed.
type Duration time.Duration

// trailing is a number without a unit after minutes or hours, spaced is space
// before a unit.
var (
	trailing = regexp.MustCompile(`([hm])([0-9]+)$`)
	spaced   = regexp.MustCompile(`([0-9]) +([a-zµ])`)
)

// ParseDuration reads a span of time: Go's form ("250ms", "1h30m"), where the
// last number may lack its unit after hours and minutes ("1m30") and space may
// come before a unit, or a plain number of seconds ("90", "0.5"). The error
// matches ErrDuration.
func ParseDuration(s string) (Duration, error) {
	text := strings.TrimSpace(s)
	if len(text) > maxText {
		return 0, fmt.Errorf("%w: %d characters; %s", ErrDuration, len(text), durationRemedy)
	}
	spelt := spaced.ReplaceAllString(text, "$1$2")
	if m := trailing.FindStringSubmatch(spelt); m != nil {
		spelt += map[string]string{"h": "m", "m": "s"}[m[1]]
	} else if strings.Trim(spelt, "-0123456789.") == "" {
		spelt += "s"
	}
	d, err := time.ParseDuration(spelt)
	switch {
	case strings.HasPrefix(text, "-"):
		return 0, fmt.Errorf("%w: %q is negative; %s", ErrDuration, s, durationRemedy)
	case err != nil && plainNumber(text):
		return 0, fmt.Errorf("%w: %q exceeds 292 years; %s", ErrDuration, s, durationRemedy)
	case err != nil:
		return 0, fmt.Errorf("%w: %q; %s", ErrDuration, s, durationRemedy)
	}
	return Duration(d), nil
}

// plainNumber reports whether text is one or more digits.
func plainNumber(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes d exactly, without the zero parts Go appends: "1m", "1h30m".
// ParseDuration reads it back.
func (d Duration) String() string {
	if d == 0 {
		return "0"
	}
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText returns String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what ParseDuration accepts; on error d is unchanged.
func (d *Duration) UnmarshalText(text []byte) error { return d.Set(string(text)) }

// Set makes Duration a command-line flag; on error d is unchanged.
func (d *Duration) Set(s string) error {
	v, err := ParseDuration(s)
	if err == nil {
		*d = v
	}
	return err
}

// Type is the word that stands for a value in --help.
func (Duration) Type() string { return "duration" }
