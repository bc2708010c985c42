package segment

import (
	"context"
	"sync"
	"testing"
	"time"

	"cascadekv/internal/vfs"
)

// TestHungFsyncTakesOneThread: those who share an fsync that hangs leave at
// their deadlines and leave their threads to others.
func TestHungFsyncTakesOneThread(t *testing.T) {
	s, fs, _ := faulty(t, func(o *Options) { o.Writers = 3 })
	put(t, s, testItem(1, 9000))
	server := make(chan struct{})
	fs.Add(vfs.Rule{Op: vfs.OpSync, Count: 1, Block: server})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range uint64(3) {
		all.Go(func() { wantErr(t, "Put", s.Put(ctx, testItem(10+i, 9000)), ErrUnavailable) })
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
