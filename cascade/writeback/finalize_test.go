package writeback

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
)

// Blocks get the ids of their bytes, and keep their names and places.
func TestPendingBlocksAreNamedByTheirBytes(t *testing.T) {
	for _, bits := range []int{block.Bits128, block.Bits256} {
		r, _, w := newWriter(t, func(o *residency.Options) { o.IDBits = bits })
		ids := put(r, 6)
		r.Seen.Take()
		if err := w.FinalizePending(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, id := range ids {
			b := r.Block(fmt.Sprint(i))
			if b.Info.ID != id || r.Mu.Blocks[id] != b || !b.In(0) {
				t.Errorf("block %d is %v, want %v", i, b.Info.ID, id)
			}
			r.Pin(fmt.Sprint(i)).Release()
		}
		if calls := r.Seen.Take(); len(parttest.Only(calls, "publish all")) != 3 || len(parttest.Only(calls, "show all")) != 3 {
			t.Errorf("the watcher was called for %q", calls)
		}
		if st := r.Count.Stats; st.PendingIDs != 0 || st.Views != 0 {
			t.Errorf("%+v", st)
		}
		parttest.Check(t, r.State)
	}
}

// A block whose bytes are stored already becomes one with the first, which takes over
// its place in memory where it has none.
func TestEqualBlocksAreMerged(t *testing.T) {
	for _, cold := range []bool{false, true} {
		t.Run(fmt.Sprint("the first is in the cold tier alone: ", cold), func(t *testing.T) {
			r, _, w := newWriter(t)
			p := parttest.Data(1, 5000)
			var first *residency.Block
			if cold {
				first = r.PutCold(parttest.Name("first"), p)
			} else {
				first = r.Put(parttest.Name("first"), p)
			}
			r.PutPending(parttest.Name("second"), p)
			r.PutPending(parttest.Name("third"), p)
			r.Leases.Renew("ns", "third", "me", time.Hour)
			if err := w.FinalizePending(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, k := range []string{"first", "second", "third"} {
				if r.Block(k) != first {
					t.Errorf("%s is another block", k)
				}
			}
			if u := r.Last().Memory.Usage(); u.Blocks != 1 || !first.In(0) || !first.Leased() || len(r.Mu.Blocks) != 1 {
				t.Errorf("%+v in memory, the first is there: %v, leased: %v; %d blocks", u, first.In(0), first.Leased(), len(r.Mu.Blocks))
			}
			if sp := r.Mu.Names.Space("ns"); r.Count.Stats.Duplicates != 2 || sp.Aliases != 2 {
				t.Errorf("%d duplicates, %d aliases", r.Count.Stats.Duplicates, sp.Aliases)
			}
			parttest.Check(t, r.State)
		})
	}
}

// The finalizer computes ids while no request is under way.
func TestFinalizeInBackground(t *testing.T) {
	r, _, w := newWriter(t)
	r.Activity.Begin()
	put(r, 4)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.FinalizeInBackground(ctx)
	}()
	pending := func() int {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		return r.Count.Stats.PendingIDs
	}
	time.Sleep(2 * residency.QuietFor)
	if n := pending(); n != 2 {
		t.Errorf("%d ids are pending during a request", n)
	}
	r.Activity.End()
	parttest.Eventually(t, "the ids are computed", func() bool { return pending() == 0 })
	stop()
	<-ended
	parttest.Check(t, r.State)
}
