package segment

import (
	"strings"
	"testing"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// TestTrace holds the order of file operations that docs/format.md §1.1 asks
// for: rename before the first fsync, one write and one fsync for each put, no
// stat but of the file system's room before each segment, no append, no second
// file while one takes frames.
func TestTrace(t *testing.T) {
	dir := t.TempDir()
	fs := vfstest.NewTrace(vfs.OS{}, dir)
	o := testOptions(dir, 0xa)
	o.FS = fs
	o.SegmentBytes = 40 << 10
	s := openStore(t, o)
	seg := "rank003-000000000000000a/agg_rank003_"
	token := "rank003-000000000000000a/" + lease.Token{Owner: 0xa, Renewed: 1800000000, Process: lease.Killed()}.String()
	closed := strings.Replace(token, "alive", "closed", 1)
	taken := strings.Replace(token, "alive.000000000000000a", "alive.000000000000000b", 1)
	step := func(name string, do func(), want ...string) {
		t.Helper()
		do()
		settleDown(s)
		if got, want := fs.Take(), strings.Join(want, "\n"); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
	a, b, c := testItem(1, 5000), testItem(2, 100, testName("b", 1)), testItem(3, 20000)
	step("open", func() {}, "mkdir .", "readdir .")
	step("first put", func() { put(t, s, a) },
		"mkdir rank003-000000000000000a",
		"create "+token,
		"close "+token,
		"statfs .",
		"create "+seg+"000000.bin.tmp",
		"write "+seg+"000000.bin.tmp 0+16384",
		"rename "+seg+"000000.bin.tmp -> "+seg+"000000.bin",
		"sync "+seg+"000000.bin.tmp")
	step("names wait", func() {
		if err := s.Link(a.Info.ID, testName("a", 2)); err != nil {
			t.Fatal(err)
		}
	})
	step("second put", func() { put(t, s, b) },
		"write "+seg+"000000.bin.tmp 16384+4096",
		"sync "+seg+"000000.bin.tmp")
	step("sync with nothing to do", func() {
		if err := s.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	step("a put that does not fit", func() { put(t, s, c) },
		"write "+seg+"000000.bin.tmp 20480+4096",
		"sync "+seg+"000000.bin.tmp",
		"statfs .",
		"create "+seg+"000001.bin.tmp",
		"write "+seg+"000001.bin.tmp 0+28672",
		"rename "+seg+"000001.bin.tmp -> "+seg+"000001.bin",
		"sync "+seg+"000001.bin.tmp")
	step("read", func() { wantBytes(t, s, a) }, "read "+seg+"000000.bin.tmp 8192+5000")
	step("evict", func() {
		for _, it := range []tiers.Item{a, b} {
			if err := s.Evict(it.Info.ID); err != nil {
				t.Fatal(err)
			}
		}
	}, "remove "+seg+"000000.bin", "close "+seg+"000000.bin.tmp")
	step("close", func() { closeStore(t, s) },
		"write "+seg+"000001.bin.tmp 28672+4096",
		"sync "+seg+"000001.bin.tmp",
		"close "+seg+"000001.bin.tmp",
		"rename "+token+" -> "+closed)

	o.Incarnation = 0xb
	s = openStore(t, o)
	step("recovery of a sealed segment", func() {}, "mkdir .", "readdir .",
		"readdir rank003-000000000000000a",
		"mkdir rank003-000000000000000b",
		"create "+strings.Replace(taken, "a/", "b/", 1),
		"close "+strings.Replace(taken, "a/", "b/", 1),
		"rename "+closed+" -> "+taken,
		"readdir rank003-000000000000000a",
		"open "+seg+"000001.bin",
		"size "+seg+"000001.bin",
		"read "+seg+"000001.bin 0+4096",
		"read "+seg+"000001.bin 32736+32",
		"read "+seg+"000001.bin 28672+4096",
		"close "+seg+"000001.bin")
	wantBytes(t, s, c)
}
