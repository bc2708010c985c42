package layout

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// putBlock stores a block of its own for each n.
func putBlock(t *testing.T, s *segment.Store, n byte) {
	t.Helper()
	data := make([]byte, 10000)
	data[0] = n
	info := block.Info{ID: block.Sum(block.Bits128, data), Size: int64(len(data)), CRC: block.CRC(data)}
	if err := s.Put(t.Context(), tiers.Item{Info: info, Data: data}); err != nil {
		t.Fatal(err)
	}
}

// headerText is the layout that a segment's header page records
// (docs/format.md §1.3).
func headerText(t *testing.T, path string) string {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil || len(page) < 4096 {
		t.Fatalf("%s: %d bytes, %v", path, len(page), err)
	}
	return zeroEnded(page[64:1088])
}

func segments(t *testing.T, dir string, want int) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "rank*-*", "agg_rank*.bin"))
	if err != nil || len(files) != want {
		t.Fatalf("segments %v, %v; want %d", files, err, want)
	}
	return files
}

func TestLustreSegmentsAreStripedAsAsked(t *testing.T) {
	for _, line := range []string{"", "-c 2 -S 1m", "-c 1 -S 16m", "-E 64M -c 1 -E eof -c 2 -S 4m", "-E 1M -L mdt -E eof -c 2"} {
		t.Run(line, func(t *testing.T) {
			dir := onLustre(t)
			var asked Layout
			if line != "" {
				asked = granted(t, line).Layout()
			}
			var told []Report
			striper := NewStriper(asked, func(r Report) { told = append(told, r) })
			s, err := segment.Open(segment.Options{Dir: dir, SegmentBlocks: 1, Layout: striper})
			if err != nil {
				t.Fatal(err)
			}
			putBlock(t, s, 1)
			putBlock(t, s, 2)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			for _, path := range segments(t, dir, 2) {
				g, err := Read(path)
				if err != nil {
					t.Fatal(err)
				}
				if text := headerText(t, path); text != g.String() {
					t.Errorf("%s records %q and has %q", path, text, g)
				}
				if d := Compare(asked, g); d != nil {
					t.Errorf("%s: %v", path, d)
				}
				if last, ok := striper.Last(); !ok || !last.OK() || !last.Granted.Layout().Equal(g.Layout()) {
					t.Errorf("the last report is %v, %v", last, ok)
				}
			}
			if len(told) != 1 || !told[0].OK() {
				t.Errorf("told %v", told)
			}
			if _, err := Read(dir); !errors.Is(err, ErrNoLayout) {
				t.Errorf("the directory that ranks share was changed: %v", err)
			}
		})
	}
}

func TestLustreStriperTellsWhenAnOSTIsAway(t *testing.T) {
	dir := onLustre(t)
	needServers(t)
	var told []Report
	s, err := segment.Open(segment.Options{Dir: dir, SegmentBlocks: 1, Layout: NewStriper(Plain(2, 8<<20, ""), func(r Report) { told = append(told, r) })})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	putBlock(t, s, 1)
	deactivate(t, dir)
	putBlock(t, s, 2)
	putBlock(t, s, 3)
	segments(t, dir, 3)
	if len(told) != 2 || !told[0].OK() || len(told[1].Differences) != 1 || told[1].Differences[0].Kind != Fewer {
		t.Errorf("told %v", told)
	}
}

// heard is an Adviser that says what the servers answered.
type heard struct{ answers chan bool }

func (h heard) WillRead(path string, off, n int64) bool {
	ok := Adviser{}.WillRead(path, off, n)
	h.answers <- ok
	return ok
}

// TestLustreServersAreAdvised: a batch of many reads of one segment tells the
// servers, and they take it.
func TestLustreServersAreAdvised(t *testing.T) {
	h := heard{make(chan bool, 1)}
	s, err := segment.Open(segment.Options{Dir: onLustre(t), Advice: h})
	if err != nil {
		t.Fatal(err)
	}
	const n, size = 100, 200_000
	var items []tiers.Item
	for i := range n {
		data := make([]byte, size)
		data[0] = byte(i)
		info := block.Info{ID: block.Sum(block.Bits128, data), Size: size, CRC: block.CRC(data)}
		items = append(items, tiers.Item{Info: info, Data: data})
	}
	if err := s.Put(t.Context(), items...); err != nil {
		t.Fatal(err)
	}
	var reads []tiers.Read
	for i := 0; i < n; i += 2 {
		ref, err := s.Pin(items[i].Info.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer ref.Release()
		reads = append(reads, tiers.Read{Pin: ref, Dst: make([]byte, size)})
	}
	if err := errors.Join(s.ReadBatch(t.Context(), reads)...); err != nil {
		t.Error(err)
	}
	if !<-h.answers {
		t.Error("no server listened")
	}
	for _, r := range reads {
		r.Pin.Release()
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
