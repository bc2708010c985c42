package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/pool"
	"cascadekv/tiers"
)

// TestEndWithAFileThatIsNotSealed: a run that could not seal a file has not ended in good
// order, or the next one would take the file for damaged and keep what it can do without.
func TestEndWithAFileThatIsNotSealed(t *testing.T) {
	s, fs, dir := faulty(t, nil)
	items := []tiers.Item{testItem(1, 30_000, testName("a", 10)), testItem(2, 30_000, testName("b", 20))}
	put(t, s, items[0])
	f := s.use()
	s.detach(f)
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Count: 1, Err: syscall.ENOSPC})
	if err := f.seal(); err == nil {
		t.Error("it is sealed")
	}
	s.unuse(f)
	put(t, s, items[1])
	closeStore(t, s)
	next := openStore(t, testOptions(dir, 2))
	if err := next.Skipped(); len(err) > 0 {
		t.Errorf("the next run leaves out %v", err)
	}
	wantBytes(t, next, items...)
}

// faulty opens a store whose file system obeys rules.
func faulty(t *testing.T, change func(*Options)) (*opened, *vfstest.Fault, string) {
	t.Helper()
	dir := t.TempDir()
	fs := vfstest.NewFault(vfs.OS{})
	o := testOptions(dir, 1)
	o.FS = fs
	if change != nil {
		change(&o)
	}
	return openStore(t, o), fs, dir
}

// TestWriteErrorsPoison: after any failed operation of a put nothing of it is
// stored, what was durable before stays readable, and the next put starts
// another file.
func TestWriteErrorsPoison(t *testing.T) {
	for name, c := range map[string]struct {
		rule  vfstest.Rule
		first bool // the rule hits the first put of a file
	}{
		"create":          {vfstest.Rule{Op: vfs.OpCreate, Count: 1, Err: vfs.ErrIO}, true},
		"first write":     {vfstest.Rule{Op: vfs.OpWrite, Count: 1, Err: vfs.ErrIO, Bytes: 5000}, true},
		"rename":          {vfstest.Rule{Op: vfs.OpRename, Count: 1, Err: vfs.ErrIO}, true},
		"first fsync":     {vfstest.Rule{Op: vfs.OpSync, Count: 1, Err: vfs.ErrIO}, true},
		"mkdir":           {vfstest.Rule{Op: vfs.OpMkdir, Count: 1, Err: vfs.ErrIO}, true},
		"write":           {vfstest.Rule{Op: vfs.OpWrite, Count: 1, Err: vfs.ErrIO}, false},
		"write half":      {vfstest.Rule{Op: vfs.OpWrite, Count: 1, Err: vfs.ErrIO, Bytes: 6000}, false},
		"fsync once":      {vfstest.Rule{Op: vfs.OpSync, Count: 1, Err: vfs.ErrIO}, false},
		"client evicted":  {vfstest.Rule{Op: vfs.OpWrite, Count: 1, Err: syscall.ESHUTDOWN}, false},
		"connection lost": {vfstest.Rule{Op: vfs.OpSync, Count: 1, Err: syscall.ENOTCONN}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, fs, dir := faulty(t, nil)
			before, lost, after := testItem(1, 9000), testItem(2, 9000, testName("lost", 1)), testItem(3, 9000)
			if !c.first {
				put(t, s, before)
			}
			fs.Add(c.rule)
			wantErr(t, "Put", s.Put(t.Context(), lost), tiers.ErrUnavailable)
			_, err := s.Pin(lost.Info.ID)
			wantErr(t, "Acquire", err, tiers.ErrNotFound)
			put(t, s, after)
			put(t, s, lost)
			begun := c.rule.Op != vfs.OpCreate && c.rule.Op != vfs.OpMkdir // those hit the run's token first
			if n := s.Health().Poisoned; (n == 1) != begun || n > 1 {
				t.Errorf("%d poisoned segments are told of", n)
			}
			wantBytes(t, s, lost, after)
			if !c.first {
				wantBytes(t, s, before)
			}
			closeStore(t, s)

			again := openStore(t, testOptions(dir, 2))
			wantBytes(t, again, lost, after)
			if again.names["lost"] != lost.Info.ID {
				t.Errorf("names %v", again.names)
			}
			if !c.first {
				wantBytes(t, again, before)
				if n := len(segments(t, dir)); n != 2 {
					t.Errorf("%d files, want the poisoned one and another", n)
				}
			}
			for _, name := range segments(t, dir) {
				if filepath.Ext(name) != ".bin" {
					t.Errorf("%s is left over", name)
				}
			}
		})
	}
}

// TestFailedFsyncSpeaksForAll: puts that share an fsync fail together, and a
// later good fsync of the same file does not acknowledge them.
func TestFailedFsyncSpeaksForAll(t *testing.T) {
	s, fs, _ := faulty(t, nil)
	put(t, s, testItem(0, 100))
	gate := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Err: vfs.ErrIO, Block: gate})
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = s.Put(t.Context(), testItem(uint64(10+i), 5000)) })
	}
	for s.writtenFrames() < 5 {
		time.Sleep(time.Millisecond)
	}
	close(gate)
	wg.Wait()
	for i, err := range errs {
		wantErr(t, "Put", err, tiers.ErrUnavailable)
		_, err = s.Pin(testItem(uint64(10+i), 5000).Info.ID)
		wantErr(t, "Acquire", err, tiers.ErrNotFound)
	}
	wantBytes(t, s, testItem(0, 100))
	if n := s.Health().Poisoned; n != 1 {
		t.Errorf("%d poisoned segments are told of", n)
	}
}

func (s *Store) writtenFrames() uint64 {
	s.mu.Lock()
	f := s.current
	s.mu.Unlock()
	if f == nil {
		return 0
	}
	f.syncMu.Lock()
	defer f.syncMu.Unlock()
	return f.written
}

// TestGroupFsync: puts that wait while an fsync runs share the next one.
func TestGroupFsync(t *testing.T) {
	dir := t.TempDir()
	fault := vfstest.NewFault(vfs.OS{})
	trace := vfstest.NewTrace(fault, dir)
	o := testOptions(dir, 1)
	o.FS = trace
	s := openStore(t, o)
	put(t, s, testItem(0, 100))
	trace.Take()
	gate := make(chan struct{})
	fault.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Block: gate})
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			if err := s.Put(t.Context(), testItem(uint64(i+1), 5000)); err != nil {
				t.Errorf("Put: %v", err)
			}
		})
	}
	for s.writtenFrames() < 7 {
		time.Sleep(time.Millisecond)
	}
	close(gate)
	wg.Wait()
	if n := bytes.Count([]byte(trace.Take()), []byte("sync ")); n != 2 {
		t.Errorf("%d fsyncs for 6 puts, want 2", n)
	}
}

// TestFull: no room means one try in a new file, then read-only until statfs
// shows more room or a while has passed.
func TestFull(t *testing.T) {
	for name, errno := range map[string]error{"space": vfs.ErrNoSpace, "quota": vfs.ErrQuota} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1800000000, 0)
			s, fs, dir := faulty(t, func(o *Options) { o.Now = func() time.Time { return now } })
			kept := testItem(1, 9000)
			put(t, s, kept)
			free := int64(10 << 30)
			fs.SetSpace(func() vfs.Space { return vfs.Space{Total: 1 << 40, Free: free} })
			fs.Add(vfstest.Rule{Op: vfs.OpWrite, Count: 1, Err: errno, Bytes: 4096})
			rotated := testItem(2, 9000)
			put(t, s, rotated)
			if s.ReadOnly() {
				t.Error("read-only although the new file took the frame")
			}

			fs.Clear()
			fs.Add(vfstest.Rule{Op: vfs.OpWrite, Err: errno})
			refused := testItem(3, 9000)
			wantErr(t, "Put on a full file system", s.Put(t.Context(), refused), tiers.ErrUnavailable)
			if h := s.Health(); !s.ReadOnly() || !h.ReadOnly || h.Poisoned != 3 {
				t.Errorf("after two failures: read-only is %v, health %+v", s.ReadOnly(), h)
			}
			fs.Clear()
			err := s.Put(t.Context(), refused)
			wantErr(t, "Put while read-only", err, tiers.ErrUnavailable)
			if !bytes.Contains([]byte(err.Error()), []byte("free some")) {
				t.Errorf("error %q has no remedy", err)
			}
			wantBytes(t, s, kept, rotated)
			free += 512<<20 + 1<<20 // half a segment and what the put needs
			put(t, s, refused)
			if s.ReadOnly() || s.Health().ReadOnly {
				t.Error("read-only although there is room again")
			}

			fs.Add(vfstest.Rule{Op: vfs.OpWrite, Err: errno})
			late := testItem(4, 9000)
			wantErr(t, "Put on a full file system", s.Put(t.Context(), late), tiers.ErrUnavailable)
			fs.Clear()
			wantErr(t, "Put while read-only", s.Put(t.Context(), late), tiers.ErrUnavailable)
			now = now.Add(2 * time.Minute)
			put(t, s, late)
			closeStore(t, s)
			again := openStore(t, testOptions(dir, 2))
			wantBytes(t, again, kept, rotated, refused, late)
		})
	}
}

// TestCloseWithoutRoom: what could not be written for want of room, a name or the footer alone, says so, and what was stored is there.
func TestCloseWithoutRoom(t *testing.T) {
	for name, errno := range map[string]error{"space": vfs.ErrNoSpace, "quota": vfs.ErrQuota} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, a name %v", name, late), func(t *testing.T) {
				s, fs, dir := faulty(t, nil)
				kept := testItem(1, 9000)
				put(t, s, kept)
				if late {
					if err := s.Link(kept.Info.ID, block.Name{Namespace: "ns", Key: "late", Seq: 100}); err != nil {
						t.Fatal(err)
					}
				}
				fs.Add(vfstest.Rule{Op: vfs.OpWrite, Err: errno})
				err := s.Close()
				wantErr(t, "Close", err, tiers.ErrFull)
				wantErr(t, "Close", err, tiers.ErrUnavailable)
				fs.Clear()
				wantBytes(t, openStore(t, testOptions(dir, 2)), kept)
			})
		}
	}
}

// TestReadErrorsAreMisses: the kind of miss depends on the error, and other
// blocks stay.
func TestReadErrorsAreMisses(t *testing.T) {
	for name, c := range map[string]struct {
		err       error
		want      error
		withdrawn bool
	}{
		"EIO":            {syscall.EIO, tiers.ErrUnavailable, false},
		"ESHUTDOWN":      {syscall.ESHUTDOWN, tiers.ErrUnavailable, false},
		"ETIMEDOUT":      {syscall.ETIMEDOUT, tiers.ErrUnavailable, false},
		"ENOTCONN":       {syscall.ENOTCONN, tiers.ErrUnavailable, false},
		"ESTALE forever": {syscall.ESTALE, tiers.ErrUnavailable, false},
		"short":          {io.ErrUnexpectedEOF, tiers.ErrCorrupt, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, fs, _ := faulty(t, nil)
			it, other := testItem(1, 9000), testItem(2, 9000)
			put(t, s, it)
			put(t, s, other)
			fs.Add(vfstest.Rule{Op: vfs.OpRead, Err: c.err})
			_, err := read(t.Context(), s, it)
			wantErr(t, "ReadInto", err, c.want)
			fs.Clear()
			_, err = read(t.Context(), s, it)
			if withdrawn := errors.Is(err, tiers.ErrNotFound); withdrawn != c.withdrawn {
				t.Errorf("withdrawn: %v, want %v", withdrawn, c.withdrawn)
			}
			if !c.withdrawn {
				wantBytes(t, s, it)
			}
			wantBytes(t, s, other)
		})
	}
}

func TestStaleHandleIsReplacedOnce(t *testing.T) {
	s, _, dir := faulty(t, nil)
	it := testItem(1, 9000)
	put(t, s, it)
	closeStore(t, s)
	fs := vfstest.NewFault(vfs.OS{})
	o := testOptions(dir, 2)
	o.FS = fs
	again := openStore(t, o)
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Count: 2, Err: vfs.ErrStale}) // in the batch, and alone
	wantBytes(t, again, it)
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Count: 2, Err: vfs.ErrStale})
	_, err := read(t.Context(), again, it)
	wantErr(t, "second ESTALE", err, tiers.ErrUnavailable)
	wantBytes(t, again, it)
}

// TestPurgedSegment: a whole file that vanished is a miss of all its blocks.
func TestPurgedSegment(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 1))
	gone := []tiers.Item{testItem(1, 9000), testItem(2, 100), testItem(3, 5000)}
	put(t, s, gone...)
	closeStore(t, s)
	s = openStore(t, testOptions(dir, 2))
	stays := testItem(4, 9000)
	put(t, s, stays)
	closeStore(t, s)
	s = openStore(t, testOptions(dir, 3))
	if err := os.Remove(filepath.Join(dir, segmentPath(1, 0))); err != nil {
		t.Fatal(err)
	}
	_, err := read(t.Context(), s, gone[0])
	wantErr(t, "ReadInto", err, tiers.ErrUnavailable)
	for _, it := range gone {
		_, err := s.Pin(it.Info.ID)
		wantErr(t, "Acquire", err, tiers.ErrNotFound)
	}
	wantBytes(t, s, stays)
	if u := s.Usage(); u.Blocks != 1 || u.Payload != 9000 {
		t.Errorf("usage %+v", u)
	}
	put(t, s, gone...)
	wantBytes(t, s, gone...)
}

// TestHungRead: a read that hangs does not hold up the caller, who is told when
// its memory is free again.
func TestHungRead(t *testing.T) {
	s, fs, _ := faulty(t, nil)
	it, other := testItem(1, 9000), testItem(2, 9000)
	put(t, s, it, other)
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Count: 1, Block: server})
	ref, err := s.Pin(it.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	dst := make([]byte, 9000)
	err = ref.ReadInto(fs.UntilHung(t.Context(), 1), dst)
	var busy *pool.Busy
	if !errors.As(err, &busy) || !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want a *Busy", err)
	}
	ref.Release()
	select {
	case <-busy.Done():
		t.Fatal("memory said to be free while the read hangs")
	default:
	}
	wantBytes(t, s, other)
	close(server)
	<-busy.Done()
	if !bytes.Equal(dst, it.Data) {
		t.Error("Done was closed before the read ended")
	}
	settleDown(s)
	wantBytes(t, s, it)
}

// TestHungWrite: a put that hangs is given up as a whole; the store goes on
// with another file and forgets the late success.
func TestHungWrite(t *testing.T) {
	for name, op := range map[string]vfs.Op{"write": vfs.OpWrite, "fsync": vfs.OpSync, "create": vfs.OpCreate} {
		t.Run(name, func(t *testing.T) {
			s, fs, _ := faulty(t, nil)
			before, hung, after := testItem(1, 9000), testItem(2, 9000), testItem(3, 9000)
			if op != vfs.OpCreate {
				put(t, s, before)
			}
			server := make(chan struct{})
			fs.Add(vfstest.Rule{Op: op, Path: ".bin", Count: 1, Block: server})
			busy := hangingPut(t, s, fs, hung)
			put(t, s, after)
			wantBytes(t, s, after)
			put(t, s, hung)
			close(server)
			<-busy.Done()
			settleDown(s)
			wantBytes(t, s, hung, after)
			if op != vfs.OpCreate {
				wantBytes(t, s, before)
			}
		})
	}
}

// TestPoolIsBounded: hung reads take no more than their share of threads, and
// the rest wait no longer than their contexts.
func TestPoolIsBounded(t *testing.T) {
	s, fs, _ := faulty(t, func(o *Options) { o.Readers = 2 })
	it := testItem(1, 9000)
	put(t, s, it)
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Block: server})
	hung := fs.UntilHung(t.Context(), 2)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { read(hung, s, it) })
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	_, err := read(ctx, s, it)
	var busy *pool.Busy
	if !errors.Is(err, tiers.ErrUnavailable) || errors.As(err, &busy) {
		t.Errorf("error %v, want tiers.ErrUnavailable and memory that was never used", err)
	}
	put(t, s, testItem(2, 100)) // writes have threads of their own
	close(server)
	settleDown(s)
	wantBytes(t, s, it)
}

// TestCloseWhileHung: Close gives up on a dead server; what was acknowledged is
// there for the next incarnation.
func TestCloseWhileHung(t *testing.T) {
	s, fs, dir := faulty(t, func(o *Options) { o.CloseWait = 20 * time.Millisecond })
	it := testItem(1, 9000)
	put(t, s, it)
	if err := s.Link(it.Info.ID, testName("late", 1)); err != nil {
		t.Fatal(err)
	}
	server := make(chan struct{})
	defer close(server)
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Block: server})
	wantErr(t, "Close", s.Close(), tiers.ErrUnavailable)
	again := openStore(t, testOptions(dir, 2))
	wantBytes(t, again, it)
}

// TestSyncWaitsForNamesOnTheirWay: a put that hangs has taken a name along.
func TestSyncWaitsForNamesOnTheirWay(t *testing.T) {
	for name, c := range map[string]struct {
		putFails error
	}{
		"put succeeds": {nil},
		"put fails":    {vfs.ErrIO},
	} {
		t.Run(name, func(t *testing.T) {
			s, fs, dir := faulty(t, nil)
			a := testItem(1, 5000)
			put(t, s, a)
			if err := s.Link(a.Info.ID, testName("k", 1)); err != nil {
				t.Fatal(err)
			}
			gate := make(chan struct{})
			fs.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Err: c.putFails, Block: gate})
			ended := make(chan error)
			go func() { ended <- s.Put(t.Context(), testItem(2, 5000)) }()
			for s.writtenFrames() < 2 {
				time.Sleep(time.Millisecond)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			wantErr(t, "Sync while the put hangs", s.Sync(ctx), tiers.ErrUnavailable)
			close(gate)
			if err := <-ended; !errors.Is(err, c.putFails) {
				t.Errorf("Put: error %v, want %v", err, c.putFails)
			}
			if err := s.Sync(t.Context()); err != nil {
				t.Error(err)
			}
			again := openStore(t, testOptions(dir, 2)) // the first is not closed
			if again.names["k"] != a.Info.ID {
				t.Errorf("names %v", again.names)
			}
		})
	}
}
