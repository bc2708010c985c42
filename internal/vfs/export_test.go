package vfs

import (
	"bytes"
	"testing"
)

// Takes is Alignment.takes.
func (a Alignment) Takes(p []byte) bool { return a.takes(p) }

// UnitOf returns the unit of offsets of a file of a Direct that goes past the page
// cache; false of others.
func UnitOf(f File) (int, bool) {
	d, ok := f.(*directFile)
	if !ok {
		return 0, false
	}
	return d.align.Offset, true
}

func TestAdvance(t *testing.T) {
	for n := range 11 {
		bufs := [][]byte{[]byte("abc"), nil, []byte("defg"), []byte("hij")}
		if got := string(bytes.Join(advance(bufs, n), nil)); got != "abcdefghij"[n:] {
			t.Errorf("advance by %d: %q", n, got)
		}
	}
}
