package segment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// directOptions are those of a store that goes past the page cache, on a disk
// that can do so.
func directOptions(t *testing.T, dir string, incarnation uint64) Options {
	t.Helper()
	if _, err := vfs.ProbeDirect(vfs.OS{}, filepath.Join(dir, "probe")); err != nil {
		t.Skipf("no O_DIRECT in %s: %v", dir, err)
	}
	o := testOptions(dir, incarnation)
	o.Direct = On
	return o
}

// TestDirect runs a store's life past the page cache: puts of all sizes, reads
// one by one, together and by place, rotation, recovery of sealed and crashed
// segments, and reads of another rank while the first still writes. The files
// of blocks as they are are the same, byte for byte, as through the page cache.
func TestDirect(t *testing.T) {
	for name, compress := range map[string]bool{"as they are": false, "encoded": true} {
		t.Run(name, func(t *testing.T) { liveDirect(t, compress) })
	}
}

func liveDirect(t *testing.T, compress bool) {
	o := directOptions(t, t.TempDir(), 1)
	o.Compress = compress
	plain := testOptions(t.TempDir(), 1)
	plain.Compress = compress
	o.SegmentBytes, plain.SegmentBytes = 5<<20, 5<<20
	s, through := openStore(t, o), openStore(t, plain)
	items, same := mixture(t, s), mixture(t, through)
	theirs := o
	theirs.Rank = 4
	other := openStore(t, theirs)
	for _, it := range items {
		wantPlace(t, other, placeOf(t, s, it), it)
	}
	wantBytes(t, s, items...)
	wantBatch(t, s, items, nil)
	o.Incarnation = 2
	crashed := openStore(t, o)
	wantBytes(t, crashed, items...)
	late := testItem(99, 12345, testName("late", 9))
	put(t, crashed, late)
	closeStore(t, s)
	closeStore(t, through)
	closeStore(t, crashed)
	o.Incarnation = 3
	again := openStore(t, o)
	wantBatch(t, again, append(items, late), nil)
	if again.names["late"] != late.Info.ID {
		t.Errorf("names %v", again.names)
	}
	if compress {
		return // which blocks are encoded depends on who came first
	}
	names := segments(t, plain.Dir)
	if len(names) < 2 || len(same) != len(items) {
		t.Fatalf("files %v", names)
	}
	for _, name := range names {
		if string(readFile(t, o.Dir, name)) != string(readFile(t, plain.Dir, name)) {
			t.Errorf("%s is another file than through the page cache", name)
		}
	}
}

// TestPageCacheStaysFree: neither way of reading leaves blocks in the page
// cache, and writes past it do not either.
func TestPageCacheStaysFree(t *testing.T) {
	for name, direct := range map[string]Switch{"past it": On, "through it": Off} {
		t.Run(name, func(t *testing.T) {
			o := directOptions(t, t.TempDir(), 1)
			o.Direct = direct
			s := openStore(t, o)
			it := testItem(1, 4<<20)
			put(t, s, it)
			path := filepath.Join(o.Dir, segmentPath(1, 0))
			if n := cachedPages(t, path); direct == On && n > 0 {
				t.Errorf("%d pages cached after a put", n)
			}
			wantBytes(t, s, it)
			if n := cachedPages(t, path); n > 4 { // a read ahead of the end may stay
				t.Errorf("%d pages cached after a read", n)
			}
			// The kernel does not drop a page that another of the batch's calls
			// uses at that moment; the next batch does.
			for again := 0; ; again++ {
				wantBatch(t, s, []tiers.Item{it}, nil)
				n := cachedPages(t, path)
				if n <= 4 {
					break
				}
				if again == 10 {
					t.Fatalf("%d pages cached after each batch", n)
				}
			}
		})
	}
}

func cachedPages(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Len: 1 << 40}, &st, 0); err != nil {
		t.Skipf("the kernel does not tell what it caches: %v", err)
	}
	return st.Cache
}

// refusing is a file system that takes O_DIRECT and then fails, as some do.
func refusing(t *testing.T) *vfstest.Fault {
	fs := vfstest.NewFault(vfs.OS{})
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: "probe", Err: unix.EINVAL})
	return fs
}

// TestAccess: what was found out is told, and the probe leaves nothing behind.
func TestAccess(t *testing.T) {
	o := testOptions(t.TempDir(), 1)
	if a := openStore(t, o).Access(); a.Direct || a.Uring || a.NoDirect != nil || a.NoUring != nil {
		t.Errorf("switched off: %+v", a)
	}
	o.Direct, o.Uring, o.Incarnation = Auto, Auto, 2
	a := openStore(t, o).Access()
	if a.Direct == (a.NoDirect != nil) || a.Uring == (a.NoUring != nil) || a.Direct && a.Alignment.Offset == 0 {
		t.Errorf("auto: %+v", a)
	}
	if left, _ := filepath.Glob(filepath.Join(o.Dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	o.FS = refusing(t)
	if a := openStore(t, o).Access(); a.Direct || a.NoDirect != nil {
		t.Errorf("auto with a file system of the caller's: %+v", a)
	}
	o.Direct = On
	_, err := Open(o)
	if !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "switch it off") {
		t.Errorf("on where it does not work: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(o.Dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestDirectTrace: past the page cache too a put is one write and one fsync, at
// multiples of what the disk asks for, and the rename comes first.
func TestDirectTrace(t *testing.T) {
	o := directOptions(t, t.TempDir(), 1)
	trace := vfstest.NewTrace(vfs.OS{}, o.Dir)
	o.FS = trace
	s := openStore(t, o)
	probe := trace.Take()
	for _, op := range []string{"create probe", "write probe", "read probe", "close", "remove probe"} {
		if !strings.Contains(probe, op) && op != "close" {
			t.Errorf("no %q in\n%s", op, probe)
		}
	}
	put(t, s, testItem(1, 5001), testItem(2, 100))
	put(t, s, testItem(3, 20000))
	seg := "rank003-0000000000000001/agg_rank003_000000.bin"
	_, token := s.lease.Current()
	want := strings.Join([]string{
		"mkdir rank003-0000000000000001", "create rank003-0000000000000001/" + token.String(), "close rank003-0000000000000001/" + token.String(), "statfs .", "create " + seg + ".tmp", "write " + seg + ".tmp 0+16384", "rename " + seg + ".tmp -> " + seg,
		"sync " + seg + ".tmp", "write " + seg + ".tmp 16384+24576", "sync " + seg + ".tmp",
	}, "\n")
	if got := trace.Take(); got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
	unit := int64(s.Access().Alignment.Offset)
	wantBytes(t, s, testItem(1, 5001), testItem(2, 100), testItem(3, 20000))
	for line := range strings.Lines(trace.Take()) {
		var off, n int64
		if _, err := fmt.Sscanf(line[strings.LastIndex(line, " ")+1:], "%d+%d", &off, &n); err != nil || off%unit != 0 || n%unit != 0 {
			t.Errorf("%q is not in units of %d: %v", line, unit, err)
		}
	}
}

// TestDirectFaults: a write past the page cache that fails poisons as ever.
func TestDirectFaults(t *testing.T) {
	o := directOptions(t, t.TempDir(), 1)
	fs := vfstest.NewFault(vfs.OS{})
	o.FS = fs
	s := openStore(t, o)
	before, lost := testItem(1, 9000), testItem(2, 3<<20)
	put(t, s, before)
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Count: 1, Bytes: 8192, Err: vfs.ErrIO})
	wantErr(t, "Put", s.Put(t.Context(), lost), tiers.ErrUnavailable)
	put(t, s, lost)
	wantBatch(t, s, []tiers.Item{before, lost}, nil)
	if n := len(segments(t, o.Dir)); n != 2 {
		t.Errorf("%d files, want the poisoned one and another", n)
	}
}

// TestCloseWithRing: a store that is closed gives its ring back.
func TestCloseWithRing(t *testing.T) {
	o := testOptions(t.TempDir(), 1)
	o.Uring = Auto
	s := openStore(t, o)
	ring := s.access.ring
	if ring == nil {
		t.Skip(s.Access().NoUring)
	}
	items := mixture(t, s)
	wantBatch(t, s, items, nil)
	closeStore(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := ring.Close(ctx); err != nil {
		t.Error(err)
	}
}

// TestNoRing: where the kernel makes no ring, batches are read by threads, or
// Open fails if they must not.
func TestNoRing(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	must, may := testOptions(t.TempDir(), 1), testOptions(t.TempDir(), 1)
	must.Uring, may.Uring = On, Auto
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, err := Open(must)
	s, mayErr := Open(may)
	if back := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); back != nil {
		t.Fatal(back)
	}
	if !errors.Is(err, tiers.ErrUnavailable) || !strings.Contains(err.Error(), "switch it off") {
		t.Errorf("on: %v", err)
	}
	if mayErr != nil {
		t.Fatal(mayErr)
	}
	defer s.Close()
	if a := s.Access(); a.Uring || a.NoUring == nil {
		t.Errorf("auto: %+v", a)
	}
	o := &opened{Store: s}
	wantBatch(t, o, mixture(t, o), nil)
}
