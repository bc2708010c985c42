package segment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/pool"
	"cascadekv/tiers"
)

// TestSurprise has one test for each surprise of a real Lustre that
// can be shown without a Lustre. Those of stripes and layouts belong to
// lustre/layout; those that only servers can show run in the guest.
func TestSurprise(t *testing.T) {
	for _, surprise := range []struct {
		name string
		test func(t *testing.T)
	}{
		{"fsync of a directory does nothing", noDirectoryFsync},
		{"a second fsync does not reach the names", renameBeforeFirstFsync},
		{"fdatasync and O_SYNC do not keep a new file", onlyFsync},
		{"calls that do not work are not used", noForbiddenCalls},
		{"a file that was not synced is there and empty", emptyFile},
		{"a closed file has a torn tail", tornTail},
		{"an unlinked file is back", unlinkedIsBack},
		{"full: a short write, ENOSPC, then fsync says nothing", shortWriteThenSilence},
		{"full: fsync says it, under O_DIRECT", fullAtFsync},
		{"full on one OST while statfs shows half free", fullWithRoom},
		{"space is back long after the unlink", spaceComesLate},
		{"cached writes pass the quota", quotaAfterwards},
		{"no inodes left", noInodes},
		{"an inactive OST", inactiveOST},
		{"rm fails on an inactive OST", removeFails},
		{"an OST unmounted: the writer hangs, then fsync fails once", unmountedOST},
		{"a new file on a dead OST", newFileOnDeadOST},
		{"servers restart: a stall without an error", stall},
		{"eviction: one fsync fails, then all is well", eviction},
	} {
		t.Run(surprise.name, surprise.test)
	}
}

// afterPower opens what a power cut of everything leaves, once for each seed.
func afterPower(t *testing.T, crash *vfstest.Crash, seeds uint64, see func(s *opened)) {
	t.Helper()
	for seed := range seeds {
		s := openStore(t, crashOptions(crash.After(vfstest.CutPower, seed), 99))
		see(s)
		closeStore(t, s)
	}
}

// noDirectoryFsync: the first block of the first segment in a new directory is
// durable when Put returns, though nothing but that file was ever synced.
func noDirectoryFsync(t *testing.T) {
	crash := vfstest.NewCrash()
	var synced []string
	fs := crash.Watch(serial(func(c vfs.Call) {
		if c.Op == vfs.OpSync {
			synced = append(synced, filepath.Base(c.Path))
		}
	}))
	s := openStore(t, crashOptions(fs, 1))
	put(t, s, testItem(1, 9000))
	if len(synced) != 1 || !strings.HasPrefix(synced[0], "agg_rank003_000000.bin") {
		t.Errorf("synced %v", synced)
	}
	afterPower(t, crash, 200, func(s *opened) { wantBytes(t, s, testItem(1, 9000)) })
}

// renameBeforeFirstFsync: each segment has its name before it is synced first,
// so that no acknowledged block is ever in a file called .tmp.
func renameBeforeFirstFsync(t *testing.T) {
	crash := vfstest.NewCrash()
	named := map[string]bool{}
	fs := crash.Watch(serial(func(c vfs.Call) {
		switch c.Op {
		case vfs.OpRename:
			named[c.Path] = true
		case vfs.OpSync:
			if !named[c.Path] {
				t.Errorf("fsync of %s before it has its name", c.Path)
			}
		}
	}))
	s := openStore(t, crashOptions(fs, 1))
	var all []tiers.Item
	for i := range 12 { // several segments
		all = append(all, testItem(uint64(i), 20000))
		put(t, s, all[i])
	}
	if len(named) < 3 {
		t.Fatalf("%d segments", len(named))
	}
	afterPower(t, crash, 100, func(s *opened) { wantBytes(t, s, all...) })
}

// sources returns the Go files, without tests, that can reach the file system.
func sources(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range []string{".", "../../internal/vfs", "../../internal/uring"} {
		paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			if !strings.HasSuffix(p, "_test.go") {
				out[p] = string(readFile(t, p))
			}
		}
	}
	return out
}

func wantNotIn(t *testing.T, calls string) {
	t.Helper()
	found := regexp.MustCompile(`\b(unix|syscall|os)\.(` + calls + `)\b`)
	for path, text := range sources(t) {
		if m := found.FindString(text); m != "" {
			t.Errorf("%s uses %s", path, m)
		}
	}
}

func onlyFsync(t *testing.T) {
	wantNotIn(t, "Fdatasync|O_SYNC|O_DSYNC|SyncFileRange|Syncfs|Sync")
	if n := strings.Count(sources(t)["../../internal/vfs/vfs.go"], "unix.Fsync("); n != 1 {
		t.Errorf("%d calls of fsync in vfs, want one", n)
	}
}

func noForbiddenCalls(t *testing.T) {
	wantNotIn(t, "O_APPEND|O_TMPFILE|Flock|FcntlFlock|Renameat2|RENAME_NOREPLACE|IoctlFileClone|IoctlFileCloneRange|Fallocate|Ftruncate|CopyFileRange|InotifyInit|InotifyInit1")
	for path, text := range sources(t) { // memory of no file is another matter
		if strings.Contains(text, "unix.Mmap(") && !strings.Contains(text, "MAP_ANON") && !strings.Contains(path, "uring") {
			t.Errorf("%s maps a file", path)
		}
	}
}

// emptyFile: what was not synced can be there without a byte.
func emptyFile(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 1))
	put(t, s, testItem(1, 9000))
	closeStore(t, s)
	writeFile(t, nil, dir, segmentPath(2, 0))
	writeFile(t, nil, dir, segmentPath(2, 1)+".tmp")
	s = openStore(t, testOptions(dir, 3))
	wantBytes(t, s, testItem(1, 9000))
	if len(s.Skipped()) != 1 || !errors.Is(s.Skipped()[0], format.ErrBadFormat) {
		t.Errorf("skipped %v", s.Skipped())
	}
	put(t, s, testItem(2, 9000))
	settleDown(s)
	if _, err := os.Stat(filepath.Join(dir, segmentPath(2, 1)+".tmp")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a .tmp file that nobody can want is still there: %v", err)
	}
}

// tornTail: a client that went leaves files that end within a page.
func tornTail(t *testing.T) {
	crash := vfstest.NewCrash()
	fs := vfstest.NewFault(crash)
	s := openStore(t, crashOptions(fs, 1))
	put(t, s, testItem(1, 9000))
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Block: server})
	ended := make(chan error)
	go func() { ended <- s.Put(t.Context(), testItem(2, 40000)) }()
	for s.writtenFrames() < 2 {
		time.Sleep(time.Millisecond)
	}
	found := 0
	for seed := range uint64(200) {
		next := openStore(t, crashOptions(crash.After(vfstest.CutNode, seed), 2))
		wantBytes(t, next, testItem(1, 9000))
		found += rightOrAbsent(t, next, testItem(2, 40000))
		closeStore(t, next)
	}
	if found == 0 || found == 200 {
		t.Errorf("the put that was under way is there %d times of 200", found)
	}
	close(server)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// unlinkedIsBack: what a power cut brings back is right, and goes again.
func unlinkedIsBack(t *testing.T) {
	crash := vfstest.NewCrash()
	s := openStore(t, crashOptions(crash, 1))
	it := testItem(1, 60000)
	put(t, s, it)
	put(t, s, testItem(2, 60000))
	if err := s.Evict(it.Info.ID); err != nil {
		t.Fatal(err)
	}
	settleDown(s)
	back := 0
	afterPower(t, crash, 50, func(s *opened) {
		if n := rightOrAbsent(t, s, it); n == 1 {
			back++
			if err := s.Evict(it.Info.ID); err != nil {
				t.Error(err)
			}
		}
		wantBytes(t, s, testItem(2, 60000))
	})
	if back == 0 || back == 50 {
		t.Errorf("back %d times of 50", back)
	}
}

func shortWriteThenSilence(t *testing.T) {
	s, fs, dir := faulty(t, nil)
	put(t, s, testItem(1, 9000))
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Count: 1, Err: vfs.ErrNoSpace, Bytes: 8192})
	put(t, s, testItem(2, 9000)) // fsync of the full file would be nil
	wantFiles(t, dir, segmentPath(1, 0), segmentPath(1, 1))
	wantBytes(t, openStore(t, testOptions(dir, 2)), testItem(1, 9000), testItem(2, 9000))
}

func fullAtFsync(t *testing.T) {
	s, fs, dir := faulty(t, nil)
	put(t, s, testItem(1, 9000))
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Err: vfs.ErrNoSpace})
	put(t, s, testItem(2, 9000))
	wantFiles(t, dir, segmentPath(1, 0), segmentPath(1, 1))
	if s.ReadOnly() {
		t.Error("read-only although the second segment had room")
	}
	wantBytes(t, openStore(t, testOptions(dir, 2)), testItem(1, 9000), testItem(2, 9000))
}

// fullWithRoom: statfs is no proof of room. Read-only ends with time all the same.
func fullWithRoom(t *testing.T) {
	now := time.Unix(1800000000, 0)
	s, fs, _ := faulty(t, func(o *Options) { o.Now = func() time.Time { return now } })
	fs.SetSpace(func() vfs.Space { return vfs.Space{Total: 100 << 40, Free: 50 << 40} })
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Err: vfs.ErrNoSpace})
	wantErr(t, "Put", s.Put(t.Context(), testItem(1, 9000)), tiers.ErrUnavailable)
	fs.Clear()
	wantErr(t, "Put while read-only", s.Put(t.Context(), testItem(1, 9000)), tiers.ErrUnavailable)
	now = now.Add(time.Minute)
	put(t, s, testItem(1, 9000))
}

func spaceComesLate(t *testing.T) {
	now := time.Unix(1800000000, 0)
	s, fs, _ := faulty(t, func(o *Options) { o.Now = func() time.Time { return now } })
	free := int64(2 << 30)
	fs.SetSpace(func() vfs.Space { return vfs.Space{Total: 100 << 40, Free: free} })
	put(t, s, testItem(1, 9000))
	free = 1 << 20
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Err: vfs.ErrNoSpace})
	wantErr(t, "Put", s.Put(t.Context(), testItem(2, 9000)), tiers.ErrUnavailable)
	fs.Clear()
	if err := s.Evict(testItem(1, 9000).Info.ID); err != nil {
		t.Fatal(err)
	}
	settleDown(s)
	now = now.Add(3 * time.Second)
	wantErr(t, "Put before the space is back", s.Put(t.Context(), testItem(2, 9000)), tiers.ErrUnavailable)
	now, free = now.Add(3*time.Second), free+1<<30
	put(t, s, testItem(2, 9000))
}

// quotaAfterwards: what passed the quota and was synced is stored; the next
// write says EDQUOT, and so does a new file.
func quotaAfterwards(t *testing.T) {
	s, fs, dir := faulty(t, nil)
	put(t, s, testItem(1, 9000), testItem(2, 9000))
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Err: vfs.ErrQuota})
	wantErr(t, "Put", s.Put(t.Context(), testItem(3, 10)), vfs.ErrQuota)
	if !s.ReadOnly() {
		t.Error("not read-only")
	}
	wantBytes(t, s, testItem(1, 9000), testItem(2, 9000))
	fs.Clear()
	closeStore(t, s)
	wantBytes(t, openStore(t, testOptions(dir, 2)), testItem(1, 9000), testItem(2, 9000))
}

func noInodes(t *testing.T) {
	s, fs, dir := faulty(t, func(o *Options) { o.SegmentBlocks = 1 })
	put(t, s, testItem(1, 9000))
	fs.Add(vfstest.Rule{Op: vfs.OpCreate, Err: vfs.ErrQuota})
	wantErr(t, "Put", s.Put(t.Context(), testItem(2, 9000)), vfs.ErrQuota)
	if !s.ReadOnly() {
		t.Error("not read-only")
	}
	wantBytes(t, s, testItem(1, 9000))
	wantFiles(t, dir, segmentPath(1, 0))
}

// inactiveOST: fsync EIO, then write EIO, fsync ESHUTDOWN, stat ESHUTDOWN, read
// EIO; and all well again when it is active.
func inactiveOST(t *testing.T) {
	s, fs, dir := faulty(t, nil)
	old := testItem(1, 9000)
	put(t, s, old)
	on := filepath.Base(segmentPath(1, 0))
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Path: on, Count: 1, Err: vfs.ErrIO})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Path: on, Err: syscall.ESHUTDOWN})
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: on, After: 1, Err: vfs.ErrIO})
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Path: on, Err: vfs.ErrIO})
	fs.Add(vfstest.Rule{Op: vfs.OpSize, Path: on, Err: syscall.ESHUTDOWN})
	wantErr(t, "Put", s.Put(t.Context(), testItem(2, 9000)), tiers.ErrUnavailable)
	put(t, s, testItem(2, 9000)) // on another
	wantBytes(t, s, testItem(2, 9000))
	_, err := read(t.Context(), s, old)
	wantErr(t, "read", err, tiers.ErrUnavailable)
	o := testOptions(dir, 2)
	o.FS = fs
	next := openStore(t, o)
	wantBytes(t, next, testItem(2, 9000))
	if len(next.Skipped()) != 1 {
		t.Errorf("skipped %v", next.Skipped())
	}
	fs.Clear()
	wantBytes(t, s, old, testItem(2, 9000))
	wantBytes(t, openStore(t, testOptions(dir, 3)), old, testItem(2, 9000))
}

// removeFails: a segment that cannot be unlinked is left for the next run.
func removeFails(t *testing.T) {
	s, fs, dir := faulty(t, nil)
	put(t, s, testItem(1, 9000))
	closeStore(t, s)
	o := testOptions(dir, 2)
	o.FS = fs
	fs.Add(vfstest.Rule{Op: vfs.OpRemove, Err: syscall.ESHUTDOWN})
	s = openStore(t, o)
	if err := s.Evict(testItem(1, 9000).Info.ID); err != nil {
		t.Fatal(err)
	}
	settleDown(s)
	put(t, s, testItem(2, 9000))
	wantFiles(t, dir, segmentPath(1, 0), segmentPath(2, 0))
	closeStore(t, s)
	s = openStore(t, testOptions(dir, 3))
	if err := s.Evict(testItem(1, 9000).Info.ID); err != nil {
		t.Fatal(err)
	}
	settleDown(s)
	wantFiles(t, dir, segmentPath(2, 0))
}

// hangingPut puts a block, the write of which hangs when Put returns.
func hangingPut(t *testing.T, s *opened, fs *vfstest.Fault, it tiers.Item) *pool.Busy {
	t.Helper()
	var busy *pool.Busy
	if err := s.Put(fs.UntilHung(t.Context(), 1), it); !errors.As(err, &busy) || !errors.Is(err, tiers.ErrUnavailable) {
		t.Fatalf("Put: error %v, want a *Busy", err)
	}
	return busy
}

// unmountedOST: the writer hangs beyond its deadline, and others go on. When the
// OST is back, the write that hung succeeds, one fsync fails, the next does
// not, and the bytes are lost.
func unmountedOST(t *testing.T) {
	crash := vfstest.NewCrash()
	fs := vfstest.NewFault(crash)
	s := openStore(t, crashOptions(fs, 1))
	put(t, s, testItem(1, 9000))
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: "000000.bin", Count: 1, Block: server})
	busy := hangingPut(t, s, fs, testItem(2, 9000))
	put(t, s, testItem(3, 9000))
	wantBytes(t, s, testItem(1, 9000), testItem(3, 9000))
	close(server)
	<-busy.Done()
	crash.Evict(1)
	_, err := s.Pin(testItem(2, 9000).Info.ID)
	wantErr(t, "Acquire of what hung", err, tiers.ErrNotFound)
	put(t, s, testItem(2, 9000))
	afterPower(t, crash, 50, func(s *opened) { wantBytes(t, s, testItem(1, 9000), testItem(2, 9000), testItem(3, 9000)) })
}

func newFileOnDeadOST(t *testing.T) {
	s, fs, dir := faulty(t, nil)
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: "000000.bin", Block: server})
	hangingPut(t, s, fs, testItem(1, 9000))
	put(t, s, testItem(1, 9000))
	wantBytes(t, s, testItem(1, 9000))
	wantBytes(t, openStore(t, testOptions(dir, 2)), testItem(1, 9000))
	close(server)
	settleDown(s)
	wantBytes(t, s, testItem(1, 9000))
}

// stall: who can wait gets an answer, and it is right.
func stall(t *testing.T) {
	s, fs, dir := faulty(t, nil)
	put(t, s, testItem(1, 9000))
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Block: server})
	ended := make(chan error, 2)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { ended <- s.Put(ctx, testItem(2, 9000)) }()
	go func() {
		_, err := read(ctx, s, testItem(1, 9000))
		ended <- err
	}()
	<-fs.UntilHung(ctx, 2).Done()
	close(server)
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	wantBytes(t, s, testItem(1, 9000), testItem(2, 9000))
	wantBytes(t, openStore(t, testOptions(dir, 2)), testItem(1, 9000), testItem(2, 9000))
}

// eviction: whatever was acknowledged around it is there, though each file's
// later fsyncs succeed.
func eviction(t *testing.T) {
	for seed := range uint64(30) {
		crash := vfstest.NewCrash()
		n, at := 0, int(seed)
		fs := crash.Watch(serial(func(c vfs.Call) {
			if n++; n == at {
				crash.Evict(seed)
			}
		}))
		s := openStore(t, crashOptions(fs, 1))
		var stored []tiers.Item
		refused := 0
		for i := range 8 {
			it := testItem(uint64(i), 9000)
			if err := s.Put(t.Context(), it); err != nil {
				refused++
				continue
			}
			stored = append(stored, it)
		}
		if refused > 1 {
			t.Errorf("%d puts refused after one eviction", refused)
		}
		wantBytes(t, s, stored...)
		afterPower(t, crash, 4, func(s *opened) { wantBytes(t, s, stored...) })
		if t.Failed() {
			t.Fatal(fmt.Sprint("seed ", seed))
		}
	}
}
