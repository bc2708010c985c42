package segfile_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"cascadekv/internal/testing/segmenttest"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// TestVersion1: a segment of version 1 is inspected and transferred as what it is, and every flip
// is found.
func TestVersion1(t *testing.T) {
	stream, items := segmenttest.Version1(t), segmenttest.Version1Items()
	file, a, err := segmenttest.Transfer(stream, int64(len(stream)), segmenttest.ID)
	if err != nil {
		t.Fatal(err)
	}
	if a.From != segmenttest.Version1ID || a.Header.Version != 1 || a.Blocks != len(items) || a.Names != 3 {
		t.Errorf("%+v", a)
	}
	for _, payloads := range []bool{false, true} {
		v := segmenttest.Inspect(t, file, payloads)
		if v.State != segfile.StateSealed || len(v.Damage) != 0 || v.Header.Version != 1 || len(segmenttest.Usable(v)) != len(items) {
			t.Errorf("%v, %+v, %+v", v.State, v.Header, v.Damage)
		}
		wantReaders(t, "whole", v, file)
	}
	for off := range file {
		bad := bytes.Clone(file)
		bad[off] ^= 1 << (off % 8)
		v := segmenttest.Inspect(t, bad, true)
		if !slices.ContainsFunc(v.Damage, func(d segfile.Damage) bool { return d.Off <= int64(off) && int64(off) < d.Off+d.Len }) {
			t.Fatalf("flip at %d: not found where it is: %+v", off, v.Damage)
		}
		if _, _, err := segmenttest.Transfer(bad, int64(len(bad)), segmenttest.ID); !errors.Is(err, format.ErrBadFormat) && !errors.Is(err, tiers.ErrCorrupt) {
			t.Fatalf("flip at %d: %v", off, err)
		}
	}
	v := segmenttest.Inspect(t, file, true)
	again := segmenttest.Redraft(t, file, v, segmenttest.ID)
	v2 := segmenttest.Inspect(t, again, true)
	if v2.Header.Version != format.Version || len(v2.Damage) != 0 || len(v2.Entries) != len(v.Entries) {
		t.Errorf("drafted anew: %+v, %+v", v2.Header, v2.Damage)
	}
}
