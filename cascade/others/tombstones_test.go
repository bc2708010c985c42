package others

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

// What is put or deleted here hides what the catalogue has of it at once; the catalogue
// withdraws it with the next flush, and the homes learn what is left.
func TestTombstonesHideAndAreFlushed(t *testing.T) {
	r := newRank(t)
	f := r.known.Hold(named("a", 5), parttest.Data(1, size))
	r.known.Hold(named("b", 5), parttest.Data(2, size))
	r.Put(parttest.Name("a"), parttest.Data(3, size))
	r.Delete("a")
	if r.LocatedOne(t.Context(), "ns", "a") != nil || r.LocatedOne(t.Context(), "ns", "b") == nil {
		t.Error("what was deleted is found, or what was not is hidden")
	}
	if len(r.flush) != 1 {
		t.Error("nobody flushes")
	}
	r.peers.Published()
	synced := r.Mu.Writes.LinkSeq
	if err := r.FlushTombstones(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.known.Withdrawn(); len(got) != 1 || len(got[0]) != 1 || got[0][0].Key != "a" || got[0][0].Seq <= 5 {
		t.Errorf("withdrawn %v", got)
	}
	if got := r.peers.Published(); len(got) != 1 || got[0][0].Name.Key != "a" || got[0][0].Has() {
		t.Errorf("published %v", got)
	}
	if r.Mu.Writes.LinkSeq == synced {
		t.Error("nobody makes the withdrawal durable")
	}
	if err := r.FlushTombstones(t.Context()); err != nil || r.known.Withdrawn() != nil {
		t.Errorf("%v, or it is withdrawn twice", err)
	}
	// Whoever found it before the flush has asked for it soon.
	sweep := func() bool {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		r.SweepLocked()
		return r.InvalidLocked(&f.Name)
	}
	if !sweep() {
		t.Error("it is forgotten at once")
	}
	if r.Advance(time.Hour); sweep() {
		t.Error("it is never forgotten")
	}
}

// What the catalogue refuses to withdraw stays hidden and is tried again; before the
// end it is recorded in the tier.
func TestARefusedFlush(t *testing.T) {
	r := newRank(t)
	f := r.known.Hold(named("a", 5), parttest.Data(1, size))
	r.known.Refuse(tiers.ErrUnavailable)
	r.Mu.Lock()
	r.InvalidateLocked(residency.NameID{NS: "ns", Key: "a"}, 9)
	r.Mu.Unlock()
	if calls := parttest.Only(r.Seen.Take(), "invalidate fetch"); len(calls) != 1 {
		t.Errorf("what is on its way: %q", calls)
	}
	if err := r.FlushTombstones(t.Context()); !errors.Is(err, tiers.ErrUnavailable) || !r.invalid(&f.Name) {
		t.Errorf("%v", err)
	}
	r.FlushLastTombstones(t.Context())
	if _, unlinks := r.files.Linked(); len(unlinks) != 1 || unlinks[0].Key != "a" || unlinks[0].Seq != 8 || !r.Log.Has("not all tombstones are flushed") {
		t.Errorf("recorded %v", unlinks)
	}
	r.known.Refuse(nil)
	if err := r.FlushTombstones(t.Context()); err != nil || len(r.known.Withdrawn()) != 1 {
		t.Errorf("%v, or it is not tried again", err)
	}
}

// A clearing hides a namespace at once and is withdrawn in bounded steps; after that it
// hides for a while what somebody may have found before.
func TestAClearing(t *testing.T) {
	for _, all := range []bool{false, true} {
		r := newRank(t)
		const n = clearStep + 10
		for i := range n {
			r.known.Hold(named(fmt.Sprint(i), 5), parttest.Data(uint64(i), 10))
		}
		named0 := named("0", 5)
		other := r.known.Hold(block.Name{Namespace: "other", Key: "a", Seq: 5}, parttest.Data(1, 10))
		r.Mu.Lock()
		c := r.InvalidateAllLocked("ns", all, math.MaxUint64)
		r.Mu.Unlock()
		young := r.known.Hold(named("young", r.stamp()), parttest.Data(2, 10))
		if r.LocatedOne(t.Context(), "ns", "7") != nil || r.invalid(&young.Name) || r.invalid(&other.Name) != all {
			t.Error("the clearing hides too little or too much")
		}
		if err := r.FlushTombstones(t.Context()); err != nil {
			t.Fatal(err)
		}
		want, got := n, r.known.Withdrawn()
		if all {
			want++
		}
		if c.Withdrawn != want || len(got) != 2 || len(got[0]) != clearStep {
			t.Errorf("%d are withdrawn in %d steps, want %d", c.Withdrawn, len(got), want)
		}
		if r.invalid(&other.Name) != all || !r.invalid(&named0) || r.invalid(&young.Name) {
			t.Error("who found something before the clearing may bring it back")
		}
		r.Advance(time.Minute)
		r.Mu.Lock()
		r.SweepLocked()
		r.Mu.Unlock()
		if r.invalid(&other.Name) || r.invalid(&named0) {
			t.Error("the clearing does not end")
		}
		if !slices.Contains(r.Seen.Take(), "invalidate fetches ns") {
			t.Error("what is on its way here is not forgotten")
		}
	}
}

// The worker flushes what is invalidated, and ends.
func TestFlushInBackground(t *testing.T) {
	r := newRank(t)
	r.known.Hold(named("a", 5), parttest.Data(1, size))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.FlushTombstonesInBackground(ctx)
	}()
	r.Put(parttest.Name("a"), parttest.Data(2, size))
	r.Delete("a")
	var got []block.Name
	parttest.Eventually(t, "it is withdrawn", func() bool {
		for _, names := range r.known.Withdrawn() {
			got = append(got, names...)
		}
		return len(got) > 0
	})
	stop()
	<-ended
	if !slices.ContainsFunc(got, func(n block.Name) bool { return n.Key == "a" }) {
		t.Errorf("withdrawn %v", got)
	}
}

// Without a catalogue there is nothing to invalidate. One of which nothing is shown yet
// may have names all the same.
func TestNothingToInvalidate(t *testing.T) {
	r := newRank(t)
	r.HasParts.Store(false)
	r.Mu.Lock()
	r.InvalidateLocked(residency.NameID{NS: "ns", Key: "early"}, 9)
	r.Mu.Unlock()
	if n := named("early", 5); !r.invalid(&n) {
		t.Error("what is not shown yet is not invalidated")
	}
	for len(r.flush) > 0 {
		<-r.flush
	}
	r.Catalogue = nil
	r.Mu.Lock()
	r.InvalidateLocked(residency.NameID{NS: "ns", Key: "a"}, 9)
	r.InvalidateAllLocked("ns", false, math.MaxUint64)
	r.Mu.Unlock()
	if n := named("a", 5); r.invalid(&n) || len(r.flush) != 0 {
		t.Error("there are tombstones")
	}
}

// TestALossIsNoDeletion: a rank that has lost what was put and never recorded, or forgets the name or its end, makes older puts void, and no
// record of the same put in another part: that may be durable. What it has recorded itself is void too.
func TestALossIsNoDeletion(t *testing.T) {
	for how, lose := range map[string]func(*rank, *residency.Block){
		"the bytes are nowhere": func(r *rank, b *residency.Block) { r.VanishLocked(b) },
		"the name ends":         func(r *rank, b *residency.Block) { residency.EndLocked(r.State, b.Names()[0]) },
	} {
		for _, recorded := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, recorded %v", how, recorded), func(t *testing.T) {
				r := newRank(t)
				put := r.Put
				if recorded {
					put = r.PutCold
				}
				b := put(parttest.Name("a"), parttest.Data(1, size))
				r.Mu.Lock()
				n := r.Mu.Names.Get("ns", "a")
				older, same, moved := named("a", n.Put()-1), named("a", n.Put()), named("a", n.Put()+2)
				r.Mu.Names.Reclaim(n) // recorded later than the other one
				r.ApplyLocked()
				lose(r, b)
				r.Mu.Unlock()
				if !r.invalid(&older) || r.invalid(&same) != recorded || r.invalid(&moved) != recorded {
					t.Errorf("void: an older put %v, the same put %v, the same put where it was moved %v", r.invalid(&older), r.invalid(&same), r.invalid(&moved))
				}
			})
		}
	}
}
