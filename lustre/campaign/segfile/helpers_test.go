package segfile_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/segmenttest"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

func testOptions(dir string, incarnation uint64) segment.Options {
	return segment.Options{
		Direct: segment.Off, Uring: segment.Off, Dir: dir, Rank: 3, Incarnation: incarnation, CloseWait: time.Second,
		Now: func() time.Time { return time.Unix(1800000000, 5) }, Process: lease.Killed(),
	}
}

// opened is a store with the names that its Recover found.
type opened struct {
	*segment.Store
	names map[string]block.ID
}

func openStore(t *testing.T, o segment.Options) *opened {
	t.Helper()
	s, err := segment.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	r := &opened{s, map[string]block.ID{}}
	err = s.Recover(func(f tiers.Entry) error {
		for _, n := range f.Names {
			r.names[n.Key] = f.Info.ID
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func put(t *testing.T, s *opened, items ...tiers.Item) {
	t.Helper()
	if err := s.Put(t.Context(), items...); err != nil {
		t.Fatal(err)
	}
}

func closeStore(t *testing.T, s *opened) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func wantBytes(t *testing.T, s *opened, items ...tiers.Item) {
	t.Helper()
	for _, it := range items {
		dst := make([]byte, it.Info.Size)
		pin, err := s.Pin(it.Info.ID)
		if err == nil {
			err = pin.ReadInto(t.Context(), dst)
			pin.Release()
		}
		if err != nil || !bytes.Equal(dst, it.Data) {
			t.Errorf("block of %d bytes: right bytes: %v, error %v", it.Info.Size, bytes.Equal(dst, it.Data), err)
		}
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %q", what, err, want)
	}
}

func segmentPath(incarnation, number uint64) string {
	return format.FileID{Rank: 3, Incarnation: incarnation, Number: number}.Path()
}

func readFile(t *testing.T, path ...string) []byte {
	t.Helper()
	p, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// smallSegment is a segment of a few frames, that of a store that was closed or of
// one that crashed, with the end of each frame.
func smallSegment(t *testing.T, sealed bool) (file []byte, items []tiers.Item, ends []int64) {
	dir := t.TempDir()
	o := testOptions(dir, 1)
	o.Compress = true
	s := openStore(t, o)
	for i, size := range []int{5000, 28, 0, 513, 9000, 4096} {
		it := segmenttest.Item(uint64(i), size, segmenttest.Name(fmt.Sprint(i), uint64(i+1)))
		put(t, s, it)
		items = append(items, it)
		ends = append(ends, int64(len(readFile(t, dir, segmentPath(1, 0)))))
	}
	if sealed {
		closeStore(t, s)
	}
	return readFile(t, dir, segmentPath(1, 0)), items, ends
}

// recoverFrom opens a store over a directory that holds just this file.
func recoverFrom(t *testing.T, file []byte) *opened {
	t.Helper()
	o := testOptions("/campaign", 2)
	o.FS, o.SegmentBytes, o.CloseWait, o.Compress = vfstest.NewCrash(), 64<<10, time.Minute, true
	path := filepath.Join(o.Dir, segmentPath(1, 0))
	for _, dir := range []string{o.Dir, filepath.Dir(path)} {
		if err := o.FS.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
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
