package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/race"
	"cascadekv/internal/testing/segmenttest"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// What the tests of segments share.
var (
	testItem   = segmenttest.Item
	tensorItem = segmenttest.Tensor
	testName   = segmenttest.Name
)

// testOptions are those of a rank whose clock stands still. It reads and writes
// through the page cache, because tests open many stores; access_test.go has
// the other ways.
func testOptions(dir string, incarnation uint64) Options {
	return Options{
		Direct: Off, Uring: Off, Dir: dir, Rank: 3, Incarnation: incarnation, CloseWait: time.Second,
		Now: func() time.Time { return time.Unix(1800000000, 5) }, Process: lease.Killed(),
	}
}

// opened is a store with what its Recover found.
type opened struct {
	*Store
	blocks  map[block.ID]block.Info
	names   map[string]block.ID
	dropped map[string]uint64
	moved   int // blocks that Merge told of
}

// fileCount is how many segments the store knows.
func (o *opened) fileCount() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.files)
}

// where returns the file that holds a block and where its payload starts in it.
func (o *opened) where(t *testing.T, id block.ID) (path string, off int64) {
	t.Helper()
	p, err := o.Segment(id)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(o.opt.Dir, p.Path), p.Offset
}

func (o *opened) tell(ids []block.ID) { o.moved += len(ids) }

func openStore(t *testing.T, o Options) *opened {
	t.Helper()
	return openIndexed(t, o, nil)
}

func openIndexed(t *testing.T, o Options, x Indexer) *opened {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	s.SetIndexer(x)
	t.Cleanup(func() { s.Close() })
	r := &opened{s, map[block.ID]block.Info{}, map[string]block.ID{}, map[string]uint64{}, 0}
	err = s.Recover(func(f tiers.Entry) error {
		if !f.Info.ID.IsZero() {
			r.blocks[f.Info.ID] = f.Info
		}
		for _, n := range f.Names {
			r.names[n.Key] = f.Info.ID
		}
		for _, n := range f.Dropped {
			r.dropped[n.Key] = n.Seq
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
		t.Fatalf("Put: %v", err)
	}
}

func closeStore(t *testing.T, s *opened) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

// read returns the block's bytes.
func read(ctx context.Context, s *opened, it tiers.Item) ([]byte, error) {
	ref, err := s.Pin(it.Info.ID)
	if err != nil {
		return nil, err
	}
	defer ref.Release()
	dst := make([]byte, it.Info.Size)
	return dst, ref.ReadInto(ctx, dst)
}

func wantBytes(t *testing.T, s *opened, items ...tiers.Item) {
	t.Helper()
	for _, it := range items {
		got, err := read(t.Context(), s, it)
		if err != nil || !bytes.Equal(got, it.Data) {
			t.Errorf("block of %d bytes: right bytes: %v, error %v", it.Info.Size, bytes.Equal(got, it.Data), err)
		}
	}
}

// rightOrAbsent counts the blocks that are there; a wrong one fails the test.
func rightOrAbsent(t *testing.T, s *opened, items ...tiers.Item) int {
	t.Helper()
	n := 0
	for _, it := range items {
		got, err := read(t.Context(), s, it)
		switch {
		case err == nil && bytes.Equal(got, it.Data):
			n++
		case err == nil:
			t.Errorf("wrong bytes of a block of %d", it.Info.Size)
		case !errors.Is(err, tiers.ErrNotFound) && !errors.Is(err, tiers.ErrCorrupt):
			t.Errorf("block of %d bytes: %v", it.Info.Size, err)
		}
	}
	return n
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %q", what, err, want)
	}
}

// segments lists the files below dir but for tokens, relative to it.
func segments(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, path := range all {
		if _, isToken := lease.ParseToken(filepath.Base(path)); !isToken {
			path, _ = filepath.Rel(dir, path)
			out = append(out, path)
		}
	}
	return out
}

func segmentPath(incarnation, number uint64) string {
	id := format.FileID{Rank: 3, Incarnation: incarnation, Number: number}
	return id.Path()
}

func wantFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	if got := segments(t, dir); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("files %v, want %v", got, want)
	}
}

// settleDown waits until nothing runs in the background.
func settleDown(s *opened) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.jobs > 0 {
		s.idle.Wait()
	}
}

func readFile(t *testing.T, path ...string) []byte {
	t.Helper()
	p, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func writeFile(t *testing.T, p []byte, path ...string) {
	t.Helper()
	name := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, p, 0o600); err != nil {
		t.Fatal(err)
	}
}

// thin tells whether tests that go through all points of something take some of
// them. The race detector makes them ten times as long and finds nothing in
// them, for one thing runs at a time; "make points" takes all.
func thin() bool { return testing.Short() || race.On }
