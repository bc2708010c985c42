package segment

import (
	"context"
	"sync"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// TestHungFsyncTakesOneThread: those who share an fsync that hangs leave at
// their deadlines and leave their threads to others.
func TestHungFsyncTakesOneThread(t *testing.T) {
	s, fs, _ := faulty(t, func(o *Options) { o.Writers = 3 })
	put(t, s, testItem(1, 9000))
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Block: server})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range uint64(3) {
		all.Go(func() { wantErr(t, "Put", s.Put(ctx, testItem(10+i, 9000)), tiers.ErrUnavailable) })
	}
	for written := uint64(0); written < 4; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		f := s.current
		s.mu.Unlock()
		f.syncMu.Lock()
		written = f.written
		f.syncMu.Unlock()
	}
	cancel()
	all.Wait()
	within, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var again sync.WaitGroup
	for i := range uint64(3) {
		again.Go(func() {
			if err := s.Put(within, testItem(10+i, 9000)); err != nil {
				t.Errorf("Put while an fsync of another segment hangs: %v", err)
			}
		})
	}
	again.Wait()
	close(server)
	settleDown(s)
	wantBytes(t, s, testItem(1, 9000), testItem(10, 9000), testItem(11, 9000), testItem(12, 9000))
}

// TestPanicBelow: a file system that panics, as a test's may whose test is over,
// tells so itself: no lock is let go of twice on the way out.
func TestPanicBelow(t *testing.T) {
	fs := vfstest.NewFault(vfs.OS{})
	o := testOptions(t.TempDir(), 1)
	o.FS = panicking{fs}
	s := openStore(t, o)
	for name, do := range map[string]func(){
		"fsync":  func() { _ = s.Put(context.Background(), testItem(1, 9000)) }, // without a deadline: on this goroutine
		"unlink": s.reclaim,
	} {
		if name == "unlink" {
			f := newFile(true)
			f.path, f.done, f.loaded = "x", true, true
			s.mu.Lock()
			s.files[f] = struct{}{}
			s.mu.Unlock()
		}
		func() {
			defer func() {
				if got := recover(); got != "below "+name {
					t.Errorf("%s: %v", name, got)
				}
			}()
			do()
		}()
	}
}

type panicking struct{ vfs.FS }

func (panicking) Remove(string) error { panic("below unlink") }

func (p panicking) Create(path string, perm uint32) (vfs.File, error) {
	f, err := p.FS.Create(path, perm)
	return panickingFile{f}, err
}

type panickingFile struct{ vfs.File }

func (panickingFile) Sync() error { panic("below fsync") }
