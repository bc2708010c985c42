package segment

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/internal/testing/hangfs"
	"cascadekv/internal/uring"
	"cascadekv/internal/vfs"
)

// elsewhere opens files below another directory, by their last names.
type elsewhere struct {
	vfs.FS
	dir string
}

func (e elsewhere) Open(path string) (vfs.File, error) {
	return e.FS.Open(filepath.Join(e.dir, filepath.Base(path)))
}

// TestKernelHangs: on a file system whose server is gone, reads hang in the
// kernel and cannot be ended. A batch obeys its context all the same, takes no
// more than its share of them, and tells when each block's memory is free; then
// everything goes on as before.
func TestKernelHangs(t *testing.T) {
	eachWay(t, func(t *testing.T, ring bool) {
		dir, mount := t.TempDir(), t.TempDir()
		s := openStore(t, testOptions(dir, 1))
		var items, far []Item
		for i := range 8 {
			items = append(items, testItem(uint64(i+1), 9000), testItem(uint64(i+100), 2*maxGap))
			far = append(far, items[2*i]) // too far from each other for one call
		}
		put(t, s, items...)
		closeStore(t, s)
		server, err := hangfs.Mount(mount, map[string][]byte{filepath.Base(segmentPath(1, 0)): readFile(t, dir, segmentPath(1, 0))})
		if errors.Is(err, hangfs.ErrUnsupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := server.Close(); err != nil {
				t.Error(err)
			}
		}()
		sys := vfs.OS{}
		if ring {
			r, err := uring.Open(8)
			if err != nil {
				t.Skip(err)
			}
			defer r.Close(t.Context())
			sys.Readv = r.Readv
		}
		o := testOptions(dir, 2)
		o.FS, o.Readers = elsewhere{sys, mount}, 3
		s = openStore(t, o)
		defer closeStore(t, s)
		wantBatch(t, s, far[:1], nil)
		server.Hang()
		reads := readsOf(t, s, far)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan []error)
		go func() { result <- s.ReadBatch(ctx, reads) }()
		for server.Waiting() < 3 {
			time.Sleep(time.Millisecond)
		}
		cancel()
		errs := <-result
		var held []*Busy
		for i, err := range errs {
			var busy *Busy
			if !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Errorf("block %d: %v", i, err)
			}
			if errors.As(err, &busy) {
				held = append(held, busy)
			} else if reads[i].Dst[0] != 0xee {
				t.Errorf("block %d was said not to be begun, and has other bytes", i)
			}
		}
		if len(held) != 3 || server.Waiting() != 3 {
			t.Errorf("%d blocks are busy and %d reads hang, want 3", len(held), server.Waiting())
		}
		server.Answer()
		for _, b := range held {
			<-b.Done()
		}
		for _, r := range reads {
			r.Ref.Release()
		}
		settleDown(s)
		wantBatch(t, s, far, nil)
		if !bytes.Equal(reads[7].Dst, bytes.Repeat([]byte{0xee}, 9000)) {
			t.Error("memory of a block that was not begun was written to")
		}
	})
}
