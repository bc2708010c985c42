package others

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/testing/parttest"
)

func TestPublishQueueHasEachNameOnce(t *testing.T) {
	all := parttest.Names(5)
	q := newPublishQueue()
	for _, i := range []int{3, 1, 3, 0, 1} {
		q.add(all[i])
	}
	if len(q.wake) != 1 {
		t.Error("the publisher is not woken")
	}
	var got []string
	take := func(most int) {
		got = nil
		q.take(most, func(n *names.Name) { got = append(got, n.Key()) })
	}
	if take(2); !slices.Equal(got, []string{"3", "1"}) {
		t.Errorf("took %v", got)
	}
	q.add(all[3]) // changed again
	q.add(all[0])
	if take(9); !slices.Equal(got, []string{"0", "3"}) {
		t.Errorf("took %v", got)
	}
	if take(9); got != nil || q.names != nil {
		t.Errorf("took %v of nothing", got)
	}
}

// What changed of a name is published once, as it is when it is published: in which
// memory the block lies, or that it is gone.
func TestAChangeIsPublishedOnce(t *testing.T) {
	r := newRank(t)
	p := parttest.Data(2, size)
	r.Put(parttest.Name("a"), parttest.Data(1, size))
	r.Put(parttest.Name("a"), p)
	r.Put(parttest.Name("b"), parttest.Data(3, size))
	r.Delete("b")
	if calls := parttest.Only(r.Seen.Take(), "invalidate fetch"); len(calls) < 4 || r.published() {
		t.Errorf("what is on its way: %q; nothing waits to be published: %v", calls, r.published())
	}
	r.publish()
	got := r.peers.Published()
	if len(got) != 1 || len(got[0]) != 2 || !r.published() {
		t.Fatalf("published %v", got)
	}
	a, b := got[0][0], got[0][1]
	at, err := r.Last().Memory.Place(r.Block("a").Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	if a.Name.Key != "a" || a.Info != r.Block("a").Info || a.Memory.Offset != at.Offset || a.Memory.Generation != at.Generation || a.Segment != nil {
		t.Errorf("%+v, %+v", a, a.Memory)
	}
	if b.Name.Key != "b" || b.Has() || b.Version <= a.Version {
		t.Errorf("%+v", b)
	}
	r.publish()
	if got := r.peers.Published(); got != nil {
		t.Errorf("published again: %v", got)
	}
}

// Of a name that has ended it is published when, so that what it replaced does not come
// back; of one that goes earlier it is not.
func TestAnEndIsPublished(t *testing.T) {
	r := newRank(t)
	end := r.Now().Add(time.Second)
	var puts []uint64
	for _, key := range []string{"ended", "gone"} {
		r.Put(parttest.Name(key), parttest.Data(1, size))
		r.Mu.Lock()
		n := r.Mu.Names.Get("ns", key)
		r.Mu.Names.Expire(n, end, r.Now())
		r.ApplyLocked()
		puts = append(puts, n.Put())
		r.Mu.Unlock()
	}
	r.publish()
	r.peers.Published()
	r.Delete("gone")
	r.publish()
	r.Advance(time.Second)
	r.Delete("ended")
	r.publish()
	got := r.peers.Published()
	if len(got) != 2 || len(got[0]) != 1 || len(got[1]) != 1 {
		t.Fatalf("published %v", got)
	}
	if st := got[0][0]; st.Has() || st.Name.Seq != puts[1] || !st.Name.Expires.IsZero() {
		t.Errorf("gone: %+v", st)
	}
	if st := got[1][0]; st.Has() || st.Name.Seq != puts[0] || !st.Name.Expires.Equal(end) {
		t.Errorf("ended: %+v, put at %d until %v", st, puts[0], end)
	}
}

// What is stated of a copy has the put stamp of what it is a copy of.
func TestACopyIsAsOldAsWhatItIsACopyOf(t *testing.T) {
	r := newRank(t)
	b := r.Put(parttest.Name("a"), parttest.Data(1, size))
	r.Mu.Lock()
	r.Mu.Names.Copy(named("copy", 5), &b.Block)
	r.ApplyLocked()
	st := r.StateLocked("ns", "copy")
	r.Mu.Unlock()
	if st.Name.Seq != 5 || st.Info != b.Info || st.Version <= 5 {
		t.Errorf("%+v", st)
	}
}

// What moves or gets its id is published for all names of the block, in bounded pieces.
func TestEveryNameIsPublished(t *testing.T) {
	r := newRank(t)
	p := parttest.Data(1, size)
	const n = 2*PublishStep + 1
	for i := range n {
		r.Put(parttest.Name(fmt.Sprint(i)), p)
	}
	r.publish()
	r.peers.Published()
	r.Mu.Lock()
	r.PlacementChangedLocked(residency.BlockOf(r.Mu.Names.Get("ns", "0")))
	r.Mu.Unlock()
	r.publish()
	if got := r.peers.Published(); len(got) != 3 || len(got[0]) != PublishStep || len(got[2]) != 1 {
		t.Errorf("published in %d pieces", len(got))
	}
}

// Where a name is gone here and the catalogue has an older put of it, that is what is
// published.
func TestWhatTheCatalogueHasIsPublishedInstead(t *testing.T) {
	r := newRank(t)
	r.Put(parttest.Name("a"), parttest.Data(1, size))
	r.publish()
	r.peers.Published()
	f := r.known.Hold(named("a", r.stamp()), parttest.Data(2, size))
	r.Mu.Lock()
	n := r.Mu.Names.Get("ns", "a")
	r.WithdrawLocked(n)
	r.Mu.Unlock()
	r.publish()
	got := r.peers.Published()
	if len(got) != 1 || got[0][0].Info != f.Info || got[0][0].Segment == nil || got[0][0].Version == 0 {
		t.Errorf("published %+v", got)
	}
}

// In the background all is published that changes from then on, until Leave; a rank
// that is alone publishes nothing.
func TestPublishInBackground(t *testing.T) {
	r := newRank(t)
	r.Peers = nil
	r.Put(parttest.Name("alone"), parttest.Data(1, size))
	r.AwaitHomes(t.Context())
	r.Mu.Lock()
	r.JoinLocked(r.peers)
	r.Mu.Unlock()
	r.Put(parttest.Name("a"), parttest.Data(2, size))
	var got [][]directory.Statement
	parttest.Eventually(t, "it is published", func() bool {
		got = append(got, r.peers.Published()...)
		return len(got) > 0
	})
	if len(got[0]) != 1 || got[0][0].Name.Key != "a" {
		t.Errorf("published %+v", got)
	}
	r.AwaitHomes(t.Context())
	if r.peers.SettledCalls() != 1 {
		t.Error("the homes are not waited for")
	}
	r.Leave()
	r.Workers.Wait()
}

// What the catalogue has had since its last round is stated, but for names that are
// here, and for what is invalid.
func TestPublishFresh(t *testing.T) {
	r := newRank(t)
	for i, k := range []string{"here", "invalid", "a", "b"} {
		r.known.Hold(named(k, uint64(i+1)), parttest.Data(uint64(i), size))
	}
	r.Put(parttest.Name("here"), parttest.Data(9, size))
	r.Mu.Lock()
	r.InvalidateLocked(residency.NameID{NS: "ns", Key: "invalid"}, 10)
	r.Mu.Unlock()
	if err := r.PublishFresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, batch := range r.peers.Published() {
		for _, st := range batch {
			keys = append(keys, st.Name.Key)
			if st.Version == 0 || st.Segment == nil {
				t.Errorf("%+v", st)
			}
		}
	}
	if !slices.Equal(keys, []string{"a", "b"}) {
		t.Errorf("stated %v", keys)
	}
}

// TestRecordsOfOnePut: a home finds a name out of date that was recorded here once more, for another rank has a
// record of the same put. If it is in this rank's files, or on its way there, it stays, and is stated as of its record; if it is in memory
// alone it goes. The other rank's record is valid.
func TestRecordsOfOnePut(t *testing.T) {
	for where, stays := range map[string]bool{"memory": false, "on its way": true, "files": true} {
		t.Run(where, func(t *testing.T) {
			r := newRank(t)
			put := r.Put
			if where == "files" {
				put = r.PutCold
			}
			b := put(parttest.Name("a"), parttest.Data(1, size))
			r.Mu.Lock()
			n := r.Mu.Names.Get("ns", "a")
			other := named("a", n.Put()+2)
			r.Mu.Names.Reclaim(n)
			r.ApplyLocked()
			recorded := n.Seq()
			b.Writing = where == "on its way"
			r.Mu.Unlock()
			r.publish()
			r.peers.Published()
			r.files.Linked()
			unbind := func(stamp uint64) bool {
				r.Mu.Lock()
				defer r.Mu.Unlock()
				return r.UnbindBeforeLocked("ns", "a", stamp)
			}
			if unbind(other.Seq) == stays || r.invalid(&other) {
				t.Errorf("it stays: %v; the other is valid: %v", !stays, !r.invalid(&other))
			}
			if _, unlinks := r.files.Linked(); len(unlinks) > 0 {
				t.Errorf("withdrawn in files: %v", unlinks)
			}
			r.publish()
			if got := r.peers.Published(); where == "files" && (len(got) != 1 || len(got[0]) != 1 || got[0][0].Name.Seq != recorded) {
				t.Errorf("published %+v", got)
			}
			r.Mu.Lock()
			b.Writing = false
			r.Mu.Unlock()
			if stays && !unbind(recorded+1) || len(r.Has("a")) > 0 {
				t.Error("it is not out of date when its record is")
			}
			parttest.Check(t, r.State)
		})
	}
}

// TestADeletionOfAMovedName: a home deletes a put that was recorded here once more, for its block was merged with another, as of
// the put's own stamp, which is all that it knows. The later record goes too.
func TestADeletionOfAMovedName(t *testing.T) {
	r := newRank(t)
	r.PutCold(parttest.Name("a"), parttest.Data(1, size))
	r.Mu.Lock()
	defer r.Mu.Unlock()
	n := r.Mu.Names.Get("ns", "a")
	put := n.Put()
	r.Mu.Names.Raise(n, put+2)
	r.ApplyLocked()
	record := named("a", put+2)
	if !r.UnbindBeforeLocked("ns", "a", put+1) || r.LookupLocked("ns", "a") != nil || !r.InvalidLocked(&record) {
		t.Error("it stays")
	}
	if _, unlinks := r.files.Linked(); len(unlinks) != 1 || unlinks[0].Seq != put+2 {
		t.Errorf("withdrawn in files: %v", unlinks)
	}
}
