package segment

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"cascadekv/internal/vfs"
)

// TestGroupSync: callers share one fsync, one that waits for another's can give up,
// and an error speaks for all that was not durable before.
func TestGroupSync(t *testing.T) {
	var poisoned atomic.Uint64
	g := groupSync{poisonings: &poisoned}
	g.init()
	g.wrote(3)
	begun, server := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	slow := func() error {
		calls.Add(1)
		close(begun)
		<-server
		return nil
	}
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if err := g.syncWithin(context.Background(), 0, slow); err != nil {
			t.Error(err)
		}
	})
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.syncWithin(ctx, 1, slow); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller without time: %v", err)
	}
	for n := range uint64(3) {
		waiting.Go(func() {
			if err := g.syncWithin(t.Context(), n, slow); err != nil {
				t.Error(err)
			}
		})
	}
	close(server)
	waiting.Wait()
	if calls.Load() != 1 || g.durable() != 3 {
		t.Errorf("%d calls, %d frames are durable", calls.Load(), g.durable())
	}
	g.wrote(5)
	for range 2 { // the second one is not tried
		if err := g.syncWithin(t.Context(), 4, func() error { calls.Add(1); return vfs.ErrIO }); !errors.Is(err, vfs.ErrIO) {
			t.Errorf("error %v", err)
		}
	}
	if err := g.syncWithin(t.Context(), 2, slow); err != nil {
		t.Errorf("what was durable before: %v", err)
	}
	if calls.Load() != 2 || poisoned.Load() != 1 || !errors.Is(g.poisoned(), vfs.ErrIO) {
		t.Errorf("%d calls, poisoned %d times: %v", calls.Load(), poisoned.Load(), g.poisoned())
	}
}
