package segment

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// smallSegment writes frames of every shape and returns the file of a store
// that crashed, with the end of each frame.
func smallSegment(t *testing.T, sealed bool) (file []byte, items []tiers.Item, ends []int64) {
	dir := t.TempDir()
	o := testOptions(dir, 1)
	o.Compress = true
	s := openStore(t, o)
	for i, size := range []int{5000, 28, 0, 513, 9000, 4096} {
		it := testItem(uint64(i), size, testName(fmt.Sprint(i), uint64(i+1)))
		put(t, s, it)
		items = append(items, it)
		ends = append(ends, s.current.w.Off)
	}
	if sealed {
		closeStore(t, s)
	}
	return readFile(t, dir, segmentPath(1, 0)), items, ends
}

// recoverFrom opens a store over a directory that holds just this file.
func recoverFrom(t *testing.T, file []byte) *opened {
	t.Helper()
	o := crashOptions(vfstest.NewCrash(), 2) // in memory, because there are many
	path := filepath.Join(o.Dir, segmentPath(1, 0))
	if err := lease.MkdirAll(o.FS, filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	h, err := o.FS.Create(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if _, err := h.Pwrite(file, 0); err != nil {
		t.Fatal(err)
	}
	return openStore(t, o)
}

// TestCutEverywhere cuts a segment at every 512 bytes: what was complete before
// the cut is there, the rest is absent, nothing is wrong, and the store works.
func TestCutEverywhere(t *testing.T) {
	for name, sealed := range map[string]bool{"crashed": false, "sealed": true} {
		t.Run(name, func(t *testing.T) {
			file, items, ends := smallSegment(t, sealed)
			for cut := 0; cut <= len(file); cut += 512 {
				s := recoverFrom(t, file[:cut])
				whole := 0
				for whole < len(ends) && ends[whole] <= int64(cut) {
					whole++
				}
				if n := rightOrAbsent(t, s, items...); n != whole || len(s.blocks) != whole || len(s.names) != whole {
					t.Fatalf("cut at %d: %d blocks can be read, %d and %d names recovered, want %d", cut, n, len(s.blocks), len(s.names), whole)
				}
				late := testItem(100, 700)
				put(t, s, late)
				wantBytes(t, s, late)
				closeStore(t, s)
			}
		})
	}
}

// TestZeroedEverywhere puts zeros in place of each 512 bytes, as an evicted
// client leaves them.
func TestZeroedEverywhere(t *testing.T) {
	file, items, _ := smallSegment(t, false)
	for off := 0; off < len(file); off += 512 {
		bad := bytes.Clone(file)
		clear(bad[off : off+512])
		s := recoverFrom(t, bad)
		rightOrAbsent(t, s, items...)
		closeStore(t, s)
	}
}

// TestBitFlips flips single bits all over crashed and sealed segments.
func TestBitFlips(t *testing.T) {
	for name, sealed := range map[string]bool{"crashed": false, "sealed": true} {
		t.Run(name, func(t *testing.T) {
			file, items, _ := smallSegment(t, sealed)
			for off := 0; off < len(file); off += 37 {
				bad := bytes.Clone(file)
				bad[off] ^= 1 << (off % 8)
				s := recoverFrom(t, bad)
				for id, info := range s.blocks {
					if info.ID != id || info.Size > 9000 {
						t.Errorf("flip at %d: recovered %+v", off, info)
					}
				}
				rightOrAbsent(t, s, items...)
				closeStore(t, s)
			}
		})
	}
}

// TestTailBehindBadFrameIsIgnored: frames behind a bad one belong to a write
// that was never acknowledged, or cannot be told from one.
func TestTailBehindBadFrameIsIgnored(t *testing.T) {
	file, items, ends := smallSegment(t, false)
	bad := bytes.Clone(file)
	bad[ends[2]] ^= 1 // magic of frame 3
	s := recoverFrom(t, bad)
	if n := rightOrAbsent(t, s, items...); n != 3 {
		t.Errorf("%d blocks, want the 3 before the bad frame", n)
	}
}

// TestForeignFrame: a frame of another file at the right place does not count.
func TestForeignFrame(t *testing.T) {
	file, items, ends := smallSegment(t, false)
	dir := t.TempDir()
	other := openStore(t, testOptions(dir, 9))
	stray := testItem(50, 5000)
	put(t, other, stray)
	foreign := readFile(t, dir, segmentPath(9, 0))[format.PageSize:]
	s := recoverFrom(t, append(bytes.Clone(file[:ends[0]]), foreign...))
	if n := rightOrAbsent(t, s, items...); n != 1 || s.blocks[stray.Info.ID].Size != 0 {
		t.Errorf("%d blocks, stray %+v", n, s.blocks[stray.Info.ID])
	}
	renamed := t.TempDir()
	writeFile(t, file, renamed, segmentPath(1, 4))
	r := openStore(t, testOptions(renamed, 2))
	if len(r.blocks) != 0 || len(r.Skipped()) != 1 {
		t.Errorf("%d blocks of a file under a wrong name, skipped %v", len(r.blocks), r.Skipped())
	}
	wantErr(t, "Skipped", r.Skipped()[0], format.ErrBadFormat)
}
