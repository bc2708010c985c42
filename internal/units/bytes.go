package units

import (
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// ErrSize marks text that is not a size.
var ErrSize = errors.New("not a size")

// maxText bounds what Parse functions look at; the longest sensible size is
// far shorter.
const maxText = 64

const sizeRemedy = `write a number with an optional unit, such as 4GiB, 64KiB, 4m or 1.5TB`

// Bytes is a size in bytes, never negative when parsed.
type Bytes int64

// Binary units, for readable constants.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
	PiB Bytes = 1 << 50
)

var byUnit = map[string]Bytes{
	"": 1, "b": 1,
	"k": KiB, "m": MiB, "g": GiB, "t": TiB, "p": PiB,
	"ki": KiB, "mi": MiB, "gi": GiB, "ti": TiB, "pi": PiB,
	"kib": KiB, "mib": MiB, "gib": GiB, "tib": TiB, "pib": PiB,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "pb": 1e15,
}

// sizeNumber is the number at the start of a size. Exponents are bounded, so
// that none asks for a number of millions of digits.
var sizeNumber = regexp.MustCompile(`^[0-9.]*([eE][+-]?[0-9]{1,2})?`)

// ParseBytes reads a size. Units are not case sensitive and may follow a
// space; a fraction needs a unit, or an exponent that makes it whole bytes, and
// is rounded down to whole bytes. The error matches ErrSize.
func ParseBytes(s string) (Bytes, error) {
	text := strings.TrimSpace(s)
	if len(text) > maxText {
		return 0, fmt.Errorf("%w: %d characters; %s", ErrSize, len(text), sizeRemedy)
	}
	end := len(sizeNumber.FindString(text))
	number, unit := text[:end], strings.TrimSpace(text[end:])
	scale, known := byUnit[strings.ToLower(unit)]
	value, isNumber := new(big.Rat).SetString(number)
	switch {
	case strings.HasPrefix(text, "-"):
		return 0, fmt.Errorf("%w: %q is negative; %s", ErrSize, s, sizeRemedy)
	case number == "" || !isNumber:
		return 0, fmt.Errorf("%w: %q does not start with a number; %s", ErrSize, s, sizeRemedy)
	case !known:
		return 0, fmt.Errorf("%w: %q has the unknown unit %q; %s", ErrSize, s, unit, sizeRemedy)
	case scale == 1 && !value.IsInt():
		return 0, fmt.Errorf("%w: %q is a fraction of a byte; %s", ErrSize, s, sizeRemedy)
	}
	value.Mul(value, new(big.Rat).SetInt64(int64(scale)))
	whole := new(big.Int).Quo(value.Num(), value.Denom())
	if !whole.IsInt64() {
		return 0, fmt.Errorf("%w: %q exceeds 8191 PiB; %s", ErrSize, s, sizeRemedy)
	}
	return Bytes(whole.Int64()), nil
}

// String writes b exactly, with the largest binary unit that divides it:
// "4GiB", "1536MiB", "1000B", "0". ParseBytes reads it back.
func (b Bytes) String() string {
	if b == 0 {
		return "0"
	}
	for _, u := range []struct {
		size Bytes
		name string
	}{{PiB, "PiB"}, {TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// Human writes b rounded to about three digits for people: "1.50 GiB". It is
// not meant to be read back.
func (b Bytes) Human() string {
	value, unit := float64(b), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if value < 1000 && value > -1000 {
			break
		}
		value, unit = value/1024, next
	}
	if unit == "B" {
		return strconv.FormatInt(int64(b), 10) + " B"
	}
	digits := 2
	if value >= 100 {
		digits = 0
	} else if value >= 10 {
		digits = 1
	}
	return strconv.FormatFloat(value, 'f', digits, 64) + " " + unit
}

// MarshalText returns String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads what ParseBytes accepts; on error b is unchanged.
func (b *Bytes) UnmarshalText(text []byte) error { return b.Set(string(text)) }

// Set makes Bytes a command-line flag; on error b is unchanged.
func (b *Bytes) Set(s string) error {
	v, err := ParseBytes(s)
	if err == nil {
		*b = v
	}
	return err
}

// Type is the word that stands for a value in --help.
func (Bytes) Type() string { return "size" }
