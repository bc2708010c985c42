package units

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ErrDuration marks text that is not a span of time.
var ErrDuration = errors.New("not a duration")

const durationRemedy = `write a number of seconds, or a number with a unit such as 250ms, 60s or 1h30m`

// Duration is a span of time, never negative when parsed.
type Duration time.Duration

// ParseDuration reads a span of time: Go's form ("250ms", "1h30m"), or a plain
// number of seconds. The error matches ErrDuration.
func ParseDuration(s string) (Duration, error) {
	text := strings.TrimSpace(s)
	if len(text) > maxText {
		return 0, fmt.Errorf("%w: %d characters; %s", ErrDuration, len(text), durationRemedy)
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		if n > math.MaxInt64/uint64(time.Second) {
			return 0, fmt.Errorf("%w: %q exceeds 292 years; %s", ErrDuration, s, durationRemedy)
		}
		return Duration(n) * Duration(time.Second), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%w: %q; %s", ErrDuration, s, durationRemedy)
	}
	if d < 0 {
		return 0, fmt.Errorf("%w: %q is negative; %s", ErrDuration, s, durationRemedy)
	}
	return Duration(d), nil
}

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
