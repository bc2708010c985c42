package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// stuck is a Ring whose reads wait.
type stuck struct {
	Ring
	until chan struct{}
}

func (r stuck) Read(ctx context.Context, batch []Transfer) {
	<-r.until
	r.Ring.Read(ctx, batch)
}

// TestLateRelease: a store that could not wait for its transfers keeps the pool until the last has
// ended, and no longer.
func TestLateRelease(t *testing.T) {
	h := newHost(small, 2)
	o := h.options([]string{t.TempDir()}, 2)
	until := make(chan struct{})
	o.Ring = func(files []vfs.File) Ring { return stuck{NewHostRing(files, h.bytes, 2), until} }
	s := open(t, o)
	all := ids(0, 1)
	h.mustStore(t, s, all)
	g, err := s.Retrieve(all)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if errs := g.RetrieveLayer(ended, 0, upTo(1)); errs == nil {
		t.Error("a read that waits came back")
	}
	if err := s.Close(ended); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("close: %v", err)
	}
	if _, err := Open(t.Context(), o); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("a pool whose blocks are still read: %v", err)
	}
	close(until)
	<-g.Close()
	var again *Store
	for wait := time.Now().Add(time.Minute); again == nil; time.Sleep(time.Millisecond) {
		if again, err = Open(t.Context(), o); err != nil && time.Now().After(wait) {
			t.Fatal(err)
		}
	}
	if got := h.check(t, again, all); got != 1 {
		t.Errorf("%d of 1 blocks", got)
	}
	closeStore(t, again)
}
