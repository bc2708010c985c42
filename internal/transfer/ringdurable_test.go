package transfer

import (
	"path/filepath"
	"testing"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/gpu/direct"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
)

// TestRingStoreNotDurable: what a disk has written and does not make durable is stored by way of memory, also where it hangs then, and the level is left alone
// for a while. The room comes back when it has answered.
func TestRingStoreNotDurable(t *testing.T) {
	r := newStoreRig(t, direct.Options{})
	hang := make(chan struct{})
	for round, rule := range []vfstest.Rule{{Err: vfs.ErrIO, Count: 1}, {Block: hang}} {
		rule.Op, rule.Path = vfs.OpSync, string(filepath.Separator)+"pool-"
		r.fs.Add(rule)
		r.patience.disk = time.Minute
		if rule.Block != nil {
			r.patience.disk = 2 * time.Second
		}
		r.fill(round, span12()...)
		r.put(Options{Job: 1, After: After{1, 0}, Replace: true}, 0, span12()...)
		if got := r.ended(1)[1]; got != twelve {
			t.Errorf("round %d: %s", round, got)
		}
		r.wantStored(round, "host", span12()...)
		if n := r.store.Stats().Tiers[1].Errors; n != uint64(round+1) {
			t.Errorf("round %d: %d errors of the disks", round, n)
		}
		r.fs.Clear()
		r.late.Add(int64(residency.ColdRetry))
	}
	close(hang)
	for end := time.Now().Add(time.Minute); r.disks.Stats().Health.Hanging > 0 || r.disks.Sync(t.Context()) != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the disk hangs still")
		}
	}
	r.patience.disk = time.Minute
	for round, by := 2, ""; by != "nvme"; round++ { // the room of what hung, and where the writer has seen the error the disks, come back soon
		r.late.Add(int64(residency.ColdRetry))
		r.fill(round, span12()...)
		r.put(Options{Job: 1, After: After{1, 0}, Replace: true}, 0, span12()...)
		if got := r.ended(1)[1]; got != twelve || round > 10_000 {
			t.Fatalf("round %d: %s", round, got)
		}
		by = r.in(newKey(ringBlocks - 1))
		r.wantStored(round, "", span12()...)
	}
	must(t, r.x.Close())
	for i := range ringBlocks {
		r.store.Delete(t.Context(), "ns", newKey(i))
	}
	for end := time.Now().Add(time.Minute); r.disks.Usage().Used != ringBlocks*ringBlock; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are used", r.disks.Usage().Used)
		}
	}
}
