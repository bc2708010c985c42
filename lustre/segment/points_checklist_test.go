package segment

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// traced opens a store that writes down its file operations.
func traced(t *testing.T, dir string, incarnation uint64) (*opened, *vfstest.Trace) {
	t.Helper()
	trace := vfstest.NewTrace(vfs.OS{}, dir)
	o := testOptions(dir, incarnation)
	o.FS = trace
	s := openStore(t, o)
	trace.Take()
	return s, trace
}

// TestChecklist has one test for each of the 13 points at which Lustre differs from
// a local file system. Other tests of this package try most of them harder.
func TestChecklist(t *testing.T) {
	for _, point := range []struct {
		name string
		test func(t *testing.T)
	}{
		{"01 single writer", singleWriter},
		{"02 layout is read back into the header", layoutReadBack},
		{"03 aligned writes at allotted offsets", alignedWrites},
		{"04 headers and payloads have checksums", checksums},
		{"05 commit order", commitOrder},
		{"06 seal and recovery", sealAndRecovery},
		{"07 poison", poison},
		{"08 read errors are misses", readErrors},
		{"09 bounded pools with deadlines", boundedPools},
		{"10 space comes back by whole segments", wholeSegments},
		{"11 few files and no stat", fewFiles},
		{"12 full", fullPoint},
		{"13 faults through a seam", seam},
	} {
		t.Run(point.name, point.test)
	}
}

// singleWriter: nobody writes to a file that another run made, not even the same
// rank with the same incarnation; an old tail is read, not continued.
func singleWriter(t *testing.T) {
	dir := t.TempDir()
	a, b := openStore(t, testOptions(dir, 1)), openStore(t, testOptions(dir, 1))
	put(t, a, testItem(1, 5000))
	put(t, b, testItem(2, 5000))
	wantFiles(t, dir, segmentPath(1, 0), segmentPath(2, 0))
	before := readFile(t, dir, segmentPath(1, 0))
	s, trace := traced(t, dir, 9)
	put(t, s, testItem(3, 5000))
	wantBytes(t, s, testItem(1, 5000), testItem(2, 5000))
	for _, op := range strings.Split(trace.Take(), "\n") {
		if strings.HasPrefix(op, "write") && !strings.Contains(op, "0000009/") {
			t.Errorf("%s: of another run", op)
		}
	}
	if !bytes.Equal(readFile(t, dir, segmentPath(1, 0)), before) {
		t.Error("an old segment was changed")
	}
}

// describing is a Layouter that was granted something else than was asked for.
type describing struct{ prepared []string }

func (d *describing) Prepare(dir string) { d.prepared = append(d.prepared, filepath.Base(dir)) }
func (d *describing) Describe(path string) string {
	return "granted: 2 stripes, of " + filepath.Base(path)
}

func layoutReadBack(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(dir, 1)
	l := &describing{}
	o.Layout = l
	s := openStore(t, o)
	put(t, s, testItem(1, 5000))
	_, h, err := format.DecodeHeader(readFile(t, dir, segmentPath(1, 0)))
	if err != nil || !strings.HasPrefix(h.Layout, "granted: 2 stripes") || len(l.prepared) != 1 {
		t.Errorf("layout %q, %v, prepared %v", h.Layout, err, l.prepared)
	}
}

func alignedWrites(t *testing.T) {
	var next int64
	fs := vfstest.NewCrash()
	watched := fs.Watch(serial(func(c vfs.Call) {
		if c.Op != vfs.OpWrite {
			return
		}
		if c.Off != next || c.Len%format.PageSize != 0 {
			t.Errorf("write of %d bytes at %d, the file ends at %d", c.Len, c.Off, next)
		}
		next = c.Off + c.Len
	}))
	o := crashOptions(watched, 1)
	o.SegmentBytes = 1 << 30
	s := openStore(t, o)
	for i, size := range []int{0, 1, 511, 513, 4095, 4097, 100000} {
		put(t, s, testItem(uint64(i), size), testItem(uint64(100+i), size+1))
		_, off := s.where(t, testItem(uint64(100+i), size+1).Info.ID)
		if size > format.InlineMax && off%format.PageSize != 0 {
			t.Errorf("payload of %d bytes at %d", size+1, off)
		}
	}
	closeStore(t, s)
}

// checksums: what an evicted client leaves, zeros where data was, is no block,
// and a header that fails its checksum is no segment.
func checksums(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 1))
	it := testItem(1, 9000)
	put(t, s, it)
	closeStore(t, s)
	p := readFile(t, dir, segmentPath(1, 0))
	hole := bytes.Clone(p)
	clear(hole[2*format.PageSize : 3*format.PageSize])
	writeFile(t, hole, dir, segmentPath(1, 0))
	s = openStore(t, testOptions(dir, 2))
	_, err := read(t.Context(), s, it)
	wantErr(t, "read of a hole", err, tiers.ErrCorrupt)
	settleDown(s)
	p[100] ^= 1
	writeFile(t, p, dir, segmentPath(1, 0))
	s = openStore(t, testOptions(dir, 3))
	if len(s.Skipped()) != 1 || len(s.blocks) != 0 {
		t.Errorf("skipped %v, %d blocks of a file with a bad header", s.Skipped(), len(s.blocks))
	}
}

// commitOrder: payload, fsync, index, answer.
func commitOrder(t *testing.T) {
	s, fs, _ := faulty(t, nil)
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Block: server})
	it := testItem(1, 5000)
	answer := make(chan error, 1)
	go func() { answer <- s.Put(t.Context(), it) }()
	for s.writtenFrames() < 1 {
		time.Sleep(time.Millisecond)
	}
	_, err := s.Pin(it.Info.ID)
	wantErr(t, "Acquire before the fsync", err, tiers.ErrNotFound)
	_, err = s.Segment(it.Info.ID)
	wantErr(t, "tiers.Segment before the fsync", err, tiers.ErrNotFound)
	select {
	case err := <-answer:
		t.Errorf("Put answered before the fsync: %v", err)
	default:
	}
	close(server)
	if err := <-answer; err != nil {
		t.Fatal(err)
	}
	wantBytes(t, s, it)
}

// sealAndRecovery: a sealed segment is recovered from its end alone, a torn tail
// is ignored and the file left as it is.
func sealAndRecovery(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 1))
	for i := range 50 {
		put(t, s, testItem(uint64(i), 9000))
	}
	closeStore(t, s)
	trace := vfstest.NewTrace(vfs.OS{}, dir)
	o := testOptions(dir, 2)
	o.FS = trace
	s = openStore(t, o)
	if n := strings.Count(trace.Take(), "read "); n != 3 {
		t.Errorf("%d reads to recover a sealed segment, want header, trailer and footer", n)
	}
	put(t, s, testItem(100, 9000))
	torn := append(readFile(t, dir, segmentPath(2, 0)), readFile(t, dir, segmentPath(2, 0))[format.PageSize:3*format.PageSize]...)
	writeFile(t, torn, dir, segmentPath(2, 0))
	s = openStore(t, testOptions(dir, 3))
	wantBytes(t, s, testItem(100, 9000), testItem(49, 9000))
	if !bytes.Equal(readFile(t, dir, segmentPath(2, 0)), torn) {
		t.Error("recovery changed the file")
	}
}

// poison: after an error nothing more goes to the segment, what was not durable
// is not there, and the block is stored from memory elsewhere.
func poison(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpWrite, vfs.OpSync} {
		s, fs, dir := faulty(t, nil)
		put(t, s, testItem(1, 5000))
		fs.Add(vfstest.Rule{Op: op, Count: 1, Err: vfs.ErrIO})
		wantErr(t, "Put", s.Put(t.Context(), testItem(2, 5000)), tiers.ErrUnavailable)
		_, err := s.Pin(testItem(2, 5000).Info.ID)
		wantErr(t, "Acquire", err, tiers.ErrNotFound)
		size := len(readFile(t, dir, segmentPath(1, 0)))
		put(t, s, testItem(2, 5000))
		wantBytes(t, s, testItem(1, 5000), testItem(2, 5000))
		if n := len(readFile(t, dir, segmentPath(1, 0))); n != size {
			t.Errorf("%s: the poisoned segment grew from %d to %d bytes", op, size, n)
		}
		fs.Add(vfstest.Rule{Op: vfs.OpClose, Err: vfs.ErrIO})
		wantErr(t, "Close", s.Close(), tiers.ErrUnavailable)
		wantBytes(t, openStore(t, testOptions(dir, 2)), testItem(1, 5000), testItem(2, 5000))
	}
}

// readErrors: each error of a read is a miss of one of two kinds, and no more
// than the block is lost by it.
func readErrors(t *testing.T) {
	for _, c := range []struct{ err, kind error }{
		{syscall.EIO, tiers.ErrUnavailable}, {syscall.ESHUTDOWN, tiers.ErrUnavailable}, {syscall.ETIMEDOUT, tiers.ErrUnavailable},
		{syscall.ENOTCONN, tiers.ErrUnavailable}, {syscall.ESTALE, tiers.ErrUnavailable}, {syscall.ENODATA, tiers.ErrUnavailable},
		{syscall.ENOENT, tiers.ErrUnavailable}, {io.ErrUnexpectedEOF, tiers.ErrCorrupt},
	} {
		s, fs, _ := faulty(t, nil)
		put(t, s, testItem(1, 5000))
		fs.Add(vfstest.Rule{Op: vfs.OpRead, Count: 2, Err: c.err})
		_, err := read(t.Context(), s, testItem(1, 5000))
		wantErr(t, c.err.Error(), err, c.kind)
		fs.Clear()
		put(t, s, testItem(2, 5000))
		wantBytes(t, s, testItem(2, 5000))
	}
}

// boundedPools: who has a deadline keeps it, whatever hangs.
func boundedPools(t *testing.T) {
	s, fs, _ := faulty(t, func(o *Options) { o.Readers, o.Writers = 1, 1 })
	put(t, s, testItem(1, 5000))
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Block: server})
	for range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := read(ctx, s, testItem(1, 5000))
		wantErr(t, "read", err, context.DeadlineExceeded)
		wantErr(t, "Put", s.Put(ctx, testItem(2, 5000)), tiers.ErrUnavailable)
		wantErr(t, "Sync", s.Sync(ctx), tiers.ErrUnavailable)
		cancel()
	}
	close(server)
	settleDown(s)
	put(t, s, testItem(2, 5000))
	wantBytes(t, s, testItem(1, 5000), testItem(2, 5000))
}

// wholeSegments: space comes back by unlinking, also under another rank that has
// the file open.
func wholeSegments(t *testing.T) {
	owner, other, _, trace, dir := ranks(t, nil)
	a, b := testItem(1, 9000), testItem(2, 9000)
	put(t, owner, a, b)
	at := placeOf(t, owner, a)
	wantPlace(t, other, at, a)
	closeStore(t, owner)
	owner = openStore(t, testOptions(dir, 3))
	for i, it := range []tiers.Item{a, b} {
		wantFiles(t, dir, segmentPath(1, 0))
		if err := owner.Evict(it.Info.ID); err != nil {
			t.Fatal(i, err)
		}
		settleDown(owner)
	}
	wantFiles(t, dir)
	wantPlace(t, other, at, a)
	for _, op := range strings.Split(trace.Take(), "\n") {
		if strings.HasPrefix(op, "write") || strings.HasPrefix(op, "remove") {
			t.Errorf("a reader did %s", op)
		}
	}
}

// fewFiles: many blocks are one file in one directory, and neither puts nor
// reads ask for lengths or lists.
func fewFiles(t *testing.T) {
	dir := t.TempDir()
	s, trace := traced(t, dir, 1)
	var all []tiers.Item
	for i := range 300 {
		all = append(all, testItem(uint64(i), 2000))
		put(t, s, all[i])
	}
	wantBytes(t, s, all...)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	ops := trace.Take()
	for op, most := range map[string]int{"size": 0, "readdir": 0, "statfs": 1} { // a segment
		if n := strings.Count(ops, op+" "); n > most {
			t.Errorf("%d times %s", n, op)
		}
	}
	wantFiles(t, dir, segmentPath(1, 0))
}

// fullPoint: one try in another segment, then read-only with a remedy, until
// there is more room than there was by a margin.
func fullPoint(t *testing.T) {
	s, fs, dir := faulty(t, nil)
	free := int64(1 << 40)
	fs.SetSpace(func() vfs.Space { return vfs.Space{Total: 1 << 50, Free: free} })
	put(t, s, testItem(1, 5000))
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Err: vfs.ErrNoSpace})
	err := s.Put(t.Context(), testItem(2, 5000))
	wantErr(t, "Put", err, tiers.ErrUnavailable)
	wantErr(t, "Put", err, vfs.ErrNoSpace)
	wantFiles(t, dir, segmentPath(1, 0))
	fs.Clear()
	for range 2 {
		if err := s.Put(t.Context(), testItem(2, 5000)); err == nil || !strings.Contains(err.Error(), "free some") || !s.ReadOnly() {
			t.Errorf("Put while read-only: %v", err)
		}
		free += 256 << 20 // twice that is half a segment, and the put needs some more
	}
	wantBytes(t, s, testItem(1, 5000))
	free += 1 << 20
	put(t, s, testItem(2, 5000))
	if s.ReadOnly() {
		t.Error("still read-only")
	}
}

// seam: each fault that the seam can inject leaves a store that stores what it
// is given again.
func seam(t *testing.T) {
	for name, r := range map[string]vfstest.Rule{
		"short write":             {Op: vfs.OpWrite, Count: 1, Err: vfs.ErrIO, Bytes: 4096},
		"EIO on the fourth":       {After: 3, Count: 1, Err: vfs.ErrIO},
		"ESHUTDOWN after k bytes": {Op: vfs.OpWrite, Count: 1, Err: syscall.ESHUTDOWN, Bytes: 1234},
		"fsync once, then well":   {Op: vfs.OpSync, Count: 1, Err: vfs.ErrIO},
		"a stale handle":          {Op: vfs.OpWrite, Count: 1, Err: vfs.ErrStale},
		"vanished":                {Op: vfs.OpCreate, Count: 1, Err: os.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			s, fs, dir := faulty(t, nil)
			fs.Add(r)
			it := testItem(1, 9000)
			if err := s.Put(t.Context(), it); err != nil {
				wantErr(t, "Put", err, tiers.ErrUnavailable)
				put(t, s, it)
			}
			wantBytes(t, s, it)
			settleDown(s) // a file that failed is unlinked in the background
			wantBytes(t, openStore(t, testOptions(dir, 2)), it)
		})
	}
	t.Run("the directory vanished", func(t *testing.T) {
		s, _, dir := faulty(t, func(o *Options) { o.SegmentBlocks = 1 })
		put(t, s, testItem(1, 9000))
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		for i := range 3 { // the first may fail
			if err := s.Put(t.Context(), testItem(2, 9000)); err != nil && (i > 0 || !errors.Is(err, tiers.ErrUnavailable)) {
				t.Fatalf("Put number %d after all was purged: %v", i, err)
			} else if err == nil {
				break
			}
		}
		wantBytes(t, s, testItem(2, 9000))
		wantBytes(t, openStore(t, testOptions(dir, 2)), testItem(2, 9000))
	})
	t.Run("a hang", boundedPools)
	t.Run("a crash that loses what was not synced", func(t *testing.T) {
		crash := vfstest.NewCrash()
		s := openStore(t, crashOptions(crash, 1))
		put(t, s, testItem(1, 9000))
		for seed := range uint64(50) {
			wantBytes(t, openStore(t, crashOptions(crash.After(vfstest.CutPower, seed), 2)), testItem(1, 9000))
		}
	})
}
