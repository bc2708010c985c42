package layout

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// sizeUnits are the letters of lfs, in either case. A b is a sector, as in dd.
var sizeUnits = map[byte]uint{'b': 9, 'c': 0, 'k': 10, 'm': 20, 'g': 30, 't': 40, 'p': 50, 'e': 60}

// smallSize is below what lfs takes a number for KiB.
const smallSize = 4096

// parseSize reads a size as lfs does: a decimal, octal (0…) or hexadecimal
// (0x…) number, possibly with a decimal fraction, and a letter for the unit,
// to which "i", "b" or "ib" may be added. A result below 4096 counts KiB.
func parseSize(text string) (int64, bool) {
	digits, rest := leadingNumber(text)
	if digits == "" && len(rest) > 1 && rest[0] == '.' && isDigit(rest[1]) {
		digits = "0"
	}
	n, err := strconv.ParseUint(digits, 0, 63)
	if err != nil {
		return 0, false
	}
	value := new(big.Rat).SetInt64(int64(n))
	if tail, found := strings.CutPrefix(rest, "."); found {
		fraction := tail[:countLeading(tail, isDigit)]
		if len(fraction) > 18 {
			return 0, false
		}
		rest = tail[len(fraction):]
		part, ok := new(big.Rat).SetString("0." + fraction + "0")
		if !ok {
			return 0, false
		}
		value.Add(value, part)
	}
	if rest != "" {
		shift, known := sizeUnits[rest[0]|0x20]
		if !known || !slices.Contains([]string{"", "i", "b", "ib"}, strings.ToLower(rest[1:])) {
			return 0, false
		}
		value.Mul(value, new(big.Rat).SetInt64(1<<shift))
	}
	whole := new(big.Int).Quo(value.Num(), value.Denom())
	switch {
	case !whole.IsInt64() || whole.Int64() > math.MaxInt64-SizeUnit:
		return 0, false
	case whole.Int64() < smallSize:
		return whole.Int64() * 1024, true
	}
	return whole.Int64(), true
}

// leadingNumber splits text behind the digits that it starts with.
func leadingNumber(text string) (digits, rest string) {
	n := countLeading(text, isDigit)
	if strings.HasPrefix(text, "0x") || strings.HasPrefix(text, "0X") {
		n = 2 + countLeading(text[2:], isHex)
	}
	return text[:n], text[n:]
}

func countLeading(text string, is func(byte) bool) int {
	n := 0
	for n < len(text) && is(text[n]) {
		n++
	}
	return n
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }

// formatSize writes a size for lfs, exactly, in the largest unit that divides
// it. A number of bytes is written only where no unit does.
func formatSize(n int64) string {
	for _, letter := range []byte("EPTGMK") {
		shift := sizeUnits[letter|0x20]
		if n != 0 && n%(1<<shift) == 0 {
			return strconv.FormatInt(n>>shift, 10) + string(letter)
		}
	}
	return strconv.FormatInt(n, 10)
}
