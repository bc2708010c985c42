package segment

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// spread opens a store with one block in each of n files.
func spread(t *testing.T, n int, change func(*Options)) (*opened, *vfstest.Fault, []tiers.Item) {
	t.Helper()
	s, fs, _ := faulty(t, func(o *Options) {
		o.SegmentBlocks, o.Readers, o.Now = 1, 4, time.Now
		if change != nil {
			change(o)
		}
	})
	var items []tiers.Item
	for i := range n {
		it := testItem(uint64(i), 9000)
		put(t, s, it)
		items = append(items, it)
	}
	return s, fs, items
}

// within reads a block with a deadline.
func within(t *testing.T, wait time.Duration, s *opened, it tiers.Item) error {
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	_, err := read(ctx, s, it)
	return err
}

// TestDeadServer: the files of one server do not answer. Their reads end at
// their deadlines and then at once; those of other files go on, though more
// reads hang than there are readers; and when the server is back, all is well.
func TestDeadServer(t *testing.T) {
	s, fs, items := spread(t, 3, nil)
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Path: filepath.Base(segmentPath(1, 0)), Block: server})
	dead, alive := items[0], items[1]
	threads := runtime.NumGoroutine()
	for s.Health().Hanging == 0 { // until a read counts as hanging
		wantErr(t, "read", within(t, 20*time.Millisecond, s, dead), tiers.ErrUnavailable)
	}
	for deadline := time.Now().Add(time.Minute); within(t, 20*time.Millisecond, s, alive) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("files of other servers are not read any more")
		}
	}
	h := s.Health()
	for range 200 {
		if err := within(t, time.Minute, s, dead); !errors.Is(err, tiers.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a read that should not be tried: %v", err)
		}
		wantBytes(t, s, alive, items[2])
	}
	after := s.Health()
	if after.Refused < h.Refused+200 || after.Files != 1 || after.Hanging > 4 || after.Writes {
		t.Errorf("health %+v, before %+v", after, h)
	}
	if n := runtime.NumGoroutine() - threads; n > 2*4+4 {
		t.Errorf("%d goroutines more than before", n)
	}
	close(server)
	fs.Clear()
	for s.Health().Hanging > 0 {
		time.Sleep(time.Millisecond)
	}
	wantBytes(t, s, items...)
	if h := s.Health(); h.Files != 0 {
		t.Errorf("health %+v with the server back", h)
	}
}

// TestDeadServerTakesNoPlaceForGood: with all readers hanging, batches and
// single reads of other files are served once their places are left, and the
// number of readers is right again in the end.
func TestDeadServerTakesNoPlaceForGood(t *testing.T) {
	s, fs, items := spread(t, 6, nil)
	server := make(chan struct{})
	for i := range uint64(4) {
		fs.Add(vfstest.Rule{Op: vfs.OpRead, Path: filepath.Base(segmentPath(1, i)), Block: server})
	}
	wantBytes(t, s, items[4], items[5])
	ctx, leave := context.WithCancel(t.Context())
	var hung sync.WaitGroup
	for i := range 4 {
		hung.Go(func() { read(ctx, s, items[i]) })
	}
	for len(s.reads) < 4 {
		time.Sleep(time.Millisecond)
	}
	wantBytes(t, s, items[4]) // has no deadline: it waits until a place is left
	batch := readsOf(t, s, items[4:])
	for i, err := range s.ReadBatch(t.Context(), batch) {
		if err != nil || !bytes.Equal(batch[i].Dst, items[4+i].Data) {
			t.Errorf("block %d of a batch: %v", i, err)
		}
	}
	leave()
	hung.Wait()
	close(server)
	settleDown(s)
	fs.Clear()
	wantBytes(t, s, items...)
	settleDown(s) // a worker takes a place once more to see that there is nothing left
	if n := len(s.reads); n != 0 {
		t.Errorf("%d places are taken and nobody reads", n)
	}
}

// TestBrokenReadsAndBack: a file that answers with errors is left alone after
// three of them, and read again when its pause is over.
func TestBrokenReadsAndBack(t *testing.T) {
	for name, errno := range map[string]error{"EIO": vfs.ErrIO, "ESHUTDOWN": syscall.ESHUTDOWN, "ENOTCONN": syscall.ENOTCONN} {
		t.Run(name, func(t *testing.T) {
			var now atomic.Int64
			s, fs, items := spread(t, 2, func(o *Options) {
				o.Now = func() time.Time { return time.Unix(1800000000, 0).Add(time.Duration(now.Add(1)) * time.Millisecond) }
			})
			fs.Add(vfstest.Rule{Op: vfs.OpRead, Path: filepath.Base(segmentPath(1, 0)), Err: errno})
			for range 10 {
				_, err := read(t.Context(), s, items[0])
				wantErr(t, "read", err, tiers.ErrUnavailable)
				wantBytes(t, s, items[1])
			}
			if h := s.Health(); h.Refused != 7 || h.Files != 1 || h.Breaks != 1 {
				t.Errorf("health %+v after 10 reads", h)
			}
			fs.Clear()
			_, err := read(t.Context(), s, items[0])
			wantErr(t, "read in the pause", err, tiers.ErrUnavailable)
			now.Add(1000)
			wantBytes(t, s, items...)
			if h := s.Health(); h.Files != 0 {
				t.Errorf("health %+v", h)
			}
		})
	}
}

// TestBrokenWritesAndBack: with three puts in a row refused, further ones are
// refused at once and leave no file behind; names wait; reads go on; after the
// pause one is tried, and all that waited becomes durable.
func TestBrokenWritesAndBack(t *testing.T) {
	var now atomic.Int64
	s, fs, items := spread(t, 1, func(o *Options) {
		o.Now = func() time.Time { return time.Unix(1800000000, 0).Add(time.Duration(now.Add(1)) * time.Millisecond) }
	})
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Err: syscall.ESHUTDOWN})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Err: syscall.ESHUTDOWN})
	for i := range 10 {
		wantErr(t, "Put", s.Put(t.Context(), testItem(uint64(100+i), 9000)), tiers.ErrUnavailable)
	}
	if h := s.Health(); !h.Writes || h.Refused < 7 || h.Breaks != 1 {
		t.Errorf("health %+v after 10 puts", h)
	}
	if err := s.Link(items[0].Info.ID, testName("k", 1)); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Sync", s.Sync(t.Context()), tiers.ErrUnavailable)
	wantBytes(t, s, items...)
	fs.Clear()
	now.Add(60000)
	late := testItem(200, 9000)
	put(t, s, late)
	if h := s.Health(); h.Writes {
		t.Errorf("health %+v", h)
	}
	again := openStore(t, testOptions(s.opt.Dir, 2))
	wantBytes(t, again, late, items[0])
	if again.names["k"] != items[0].Info.ID {
		t.Errorf("names %v", again.names)
	}
	wantErr(t, "a block that was refused", func() error { _, err := again.Pin(testItem(105, 9000).Info.ID); return err }(), tiers.ErrNotFound)
}

// TestDeadServerUnderWrites: a segment lies on a server that is gone. Puts that
// wait for it leave at their deadlines, later ones go to another segment, and
// no more threads hang than there may be.
func TestDeadServerUnderWrites(t *testing.T) {
	s, fs, _ := spread(t, 0, func(o *Options) { o.SegmentBlocks, o.Writers = 0, 2 })
	put(t, s, testItem(1, 9000))
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Path: "000000.bin", Block: server})
	hangingPut(t, s, fs, testItem(2, 9000))
	for i := range 20 {
		put(t, s, testItem(uint64(10+i), 9000))
	}
	fs.Add(vfstest.Rule{Op: vfs.OpCreate, Block: server}) // and now none answers
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Block: server})
	before := runtime.NumGoroutine()
	begun := time.Now()
	for refused := uint64(0); refused < 50; refused = s.Health().Refused {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		wantErr(t, "Put", s.Put(ctx, testItem(500+refused, 9000)), tiers.ErrUnavailable)
		cancel()
		if time.Since(begun) > time.Minute {
			t.Fatalf("puts are still tried: %+v", s.Health())
		}
	}
	if n := runtime.NumGoroutine() - before; n > 2*2+4 {
		t.Errorf("%d goroutines more than before", n)
	}
	close(server)
	settleDown(s)
	fs.Clear()
	put(t, s, testItem(900, 9000))
	wantBytes(t, s, testItem(1, 9000), testItem(900, 9000))
	if n := len(s.writes); n != 0 {
		t.Errorf("%d places are taken and nobody writes", n)
	}
}
