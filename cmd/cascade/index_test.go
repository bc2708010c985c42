package main

import (
	"strings"
	"testing"

	"cascadekv/internal/preflight"
	"cascadekv/tiers"
)

// TestIndexOfWhatOthersLeft: status and doctor tell of it, and of a broken one
// why, and what to do.
func TestIndexOfWhatOthersLeft(t *testing.T) {
	works := &tiers.CatalogueState{Parts: 3, Segments: 12, DiskBytes: 5 << 20, SizeRatio: 10, Runs: 4}
	broken := &tiers.CatalogueState{Broken: "no space left on device"}
	row := strings.Join(indexRow(works), " ")
	for _, part := range []string{"12 segments", "3 parts", "T=10 K=4"} {
		if !strings.Contains(row, part) {
			t.Errorf("%q lacks %q", row, part)
		}
	}
	if row := strings.Join(indexRow(broken), " "); !strings.Contains(row, "BROKEN no space") {
		t.Errorf("%q", row)
	}
	if c := checkIndex(works); c.Verdict != preflight.OK {
		t.Errorf("%+v", c)
	}
	if c := checkIndex(broken); c.Verdict != preflight.Warn || !strings.Contains(c.Detail, "no space") || !strings.Contains(c.Remedy, "lustre.index") {
		t.Errorf("%+v", c)
	}
}
