package segment

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/segmenttest"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// versionOf is the version that the header page of a segment has.
func versionOf(t *testing.T, p []byte) uint16 {
	t.Helper()
	_, h, err := format.DecodeHeader(p)
	if err != nil {
		t.Fatal(err)
	}
	return h.Version
}

// TestVersion1: a segment of version 1 is read, sealed or cut off by a crash, as it is; a merge
// moves what is in it to one of this version.
func TestVersion1(t *testing.T) {
	file, items := segmenttest.Version1(t), segmenttest.Version1Items()
	for name, size := range map[string]int{"sealed": len(file), "not sealed": len(file) - format.PageSize} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := segmentPath(segmenttest.Version1ID.Incarnation, 0)
			if err := os.Mkdir(filepath.Join(dir, filepath.Dir(path)), 0o700); err != nil {
				t.Fatal(err)
			}
			writeFile(t, file[:size], dir, path)
			s := openStore(t, testOptions(dir, 0xabcdf0))
			wantBytes(t, s, items...)
			if want := map[string]block.ID{"key-1": items[0].Info.ID, "k": items[1].Info.ID}; !maps.Equal(s.names, want) || s.dropped["gone"] != 9 {
				t.Errorf("names %v, withdrawn %v", s.names, s.dropped)
			}
			if err := s.Evict(items[2].Info.ID); err != nil {
				t.Fatal(err)
			}
			if merged(t, s, 1).Segments != 1 {
				t.Fatal("not merged")
			}
			settleDown(s)
			wantBytes(t, s, items[:2]...)
			wantFiles(t, dir, segmentPath(0xabcdf0, 0))
			closeStore(t, s)
			if v := versionOf(t, readFile(t, dir, segmentPath(0xabcdf0, 0))); v != format.Version {
				t.Errorf("merged into version %d", v)
			}
		})
	}
}

// TestNewerVersionIsLeftAlone: what a newer program wrote is named, not read, and neither
// changed nor removed.
func TestNewerVersionIsLeftAlone(t *testing.T) {
	for name, at := range map[string]int{"version": 8, "features": 11} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openStore(t, testOptions(dir, 1))
			put(t, s, testItem(1, 5000))
			closeStore(t, s)
			p := readFile(t, dir, segmentPath(1, 0))
			p[at] = 99
			format.LE.PutUint32(p[4092:], block.CRC(p[:4092]))
			writeFile(t, p, dir, segmentPath(1, 0))
			s = openStore(t, testOptions(dir, 2))
			skipped := s.Skipped()
			if len(skipped) != 1 || !errors.Is(skipped[0], format.ErrBadFormat) || !bytes.Contains([]byte(skipped[0].Error()), []byte(segmentPath(1, 0))) {
				t.Errorf("%v", skipped)
			}
			if _, err := s.Pin(testItem(1, 5000).Info.ID); !errors.Is(err, tiers.ErrNotFound) {
				t.Errorf("Pin: %v", err)
			}
			merged(t, s, 1)
			settleDown(s)
			closeStore(t, s)
			if !bytes.Equal(readFile(t, dir, segmentPath(1, 0)), p) {
				t.Error("it was changed")
			}
		})
	}
}

// TestLayoutsStayWithNames: each segment with names of a namespace has its newest layout, and
// merges and restarts keep it.
func TestLayoutsStayWithNames(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, small(dir, 1))
	first, second := block.Layout{Tokens: 16, DType: "bf16"}, block.Layout{Tokens: 32, Layers: 2}
	put(t, s, testItem(1, 5000, testName("a", 10)))
	for seq, l := range map[uint64]block.Layout{5: first, 4: {Heads: 9}} { // the older one in either order
		if err := s.SetLayout("ns", seq, l); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetLayout("ns", 6, block.Layout{KeyBytes: 1}); !errors.Is(err, block.ErrBadLayout) {
		t.Errorf("SetLayout of a bad one: %v", err)
	}
	closeStore(t, s)
	s = openStore(t, small(dir, 2))
	if seq, got := s.Layout("ns"); seq != 5 || got != first {
		t.Errorf("after a restart %+v", got)
	}
	put(t, s, testItem(2, 5000, testName("b", 20)), testItem(3, 5000))
	if err := s.SetLayout("ns", 7, second); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	s = openStore(t, small(dir, 3))
	if err := s.Evict(testItem(3, 5000).Info.ID); err != nil {
		t.Fatal(err)
	}
	for merged(t, s, 1).Segments > 0 {
	}
	settleDown(s)
	closeStore(t, s)
	if n := len(segments(t, dir)); n != 1 {
		t.Fatalf("%d segments", n)
	}
	s = openStore(t, small(dir, 4))
	if seq, got := s.Layout("ns"); seq != 7 || got != second {
		t.Errorf("after a merge %+v", got)
	}
}
