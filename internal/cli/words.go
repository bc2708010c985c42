package cli

import (
	"cmp"
	"strconv"

	"cascadekv/internal/units"
)

// Human is a number of bytes for people: "1.5 GiB".
func Human(bytes int64) string { return units.Bytes(bytes).Human() }

// Share is part of whole in percent, "-" of nothing.
func Share(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return strconv.FormatFloat(100*float64(part)/float64(whole), 'f', 1, 64) + " %"
}

// Times is how many times of n is: "1.50×", "-" of nothing.
func Times(n, of int64) string {
	if of == 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(n)/float64(of), 'f', 2, 64) + "×"
}

// Dash is s, or "-" for nothing.
func Dash(s string) string { return cmp.Or(s, "-") }
