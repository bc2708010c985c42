package segment

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
)

// layouter writes down its calls and what it saw.
type layouter struct {
	t     *testing.T
	text  string
	mu    sync.Mutex
	calls []string
}

func (l *layouter) note(call string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, call)
}

func (l *layouter) Prepare(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		l.t.Fatalf("%s is not new: %v, %v", dir, entries, err)
	}
	if _, isToken := lease.ParseToken(entries[0].Name()); !isToken {
		l.t.Errorf("%s is in a new directory", entries[0].Name())
	}
	l.note("prepare " + filepath.Base(dir))
}

func (l *layouter) Describe(path string) string {
	if info, err := os.Stat(path); err != nil || info.Size() != 0 {
		l.t.Errorf("%s is not empty: %v, %v", path, info, err)
	}
	l.note("describe " + filepath.Base(path))
	return l.text
}

func TestLayoutIsAskedForOnceAndRecordedInEachHeader(t *testing.T) {
	for name, text := range map[string]string{"known": "-c 2 -S 4M on OST 1,0", "unknown": "", "long": strings.Repeat("x", 2000)} {
		t.Run(name, func(t *testing.T) {
			l := &layouter{t: t, text: text}
			o := testOptions(t.TempDir(), 1)
			o.Layout, o.SegmentBlocks = l, 1
			s := openStore(t, o)
			for i := range uint64(3) {
				if err := s.Put(t.Context(), testItem(i, 5000)); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			dir := format.FileID{Rank: 3, Incarnation: 1}.Dir()
			want := []string{"prepare " + dir, "describe agg_rank003_000000.bin.tmp", "describe agg_rank003_000001.bin.tmp", "describe agg_rank003_000002.bin.tmp"}
			if !slices.Equal(l.calls, want) {
				t.Errorf("calls %q, want %q", l.calls, want)
			}
			files, err := filepath.Glob(filepath.Join(o.Dir, dir, "*.bin"))
			if err != nil || len(files) != 3 {
				t.Fatalf("%v, %v", files, err)
			}
			for _, path := range files {
				page, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				_, h, err := format.DecodeHeader(page)
				if err != nil || h.Layout != text[:min(len(text), format.LayoutSize)] {
					t.Errorf("%s records %q: %v", path, h.Layout, err)
				}
			}
			again := openStore(t, testOptions(o.Dir, 2))
			for i := range uint64(3) {
				id := testItem(i, 5000).Info.ID
				if _, found := again.blocks[id]; !found {
					t.Errorf("%v is not recovered", id)
				}
			}
		})
	}
}
