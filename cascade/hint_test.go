package cascade

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/cascade/load"
)

// TestDeclare: what is declared reaches the policy of the blocks that are here, is no access, and a later use takes
// its place.
func TestDeclare(t *testing.T) {
	r := newRig(t, 8<<20, false)
	const n, size = 4, 100_000
	var keys []string
	for i := range n {
		e := ns(fmt.Sprint("k", i))
		if i > 0 {
			e.Parent = keys[i-1]
		}
		keys = append(keys, e.Key)
		r.put(e, data(uint64(i), size))
	}
	r.advance(time.Minute)
	class := func(i int) string { return why(t, r.Store, keys[i]).Levels[0].Class }
	before := r.Stats()
	if got := Declare(t.Context(), r.Store, "ns", append(keys, "absent"), Hint{Shared: 1, Due: 30 * time.Second}); got != n {
		t.Errorf("%d keys were reached, want %d", got, n)
	}
	if after := r.Stats(); after.Hits != before.Hits || after.Misses != before.Misses || after.Lookups != before.Lookups || after.Leases != before.Leases {
		t.Errorf("a hint is an access: %+v, before %+v", after, before)
	}
	for i := range keys {
		if got := class(i); !strings.Contains(got, "due after") {
			t.Errorf("block %d is %q", i, got)
		}
	}
	if got := Declare(t.Context(), r.Store, "other", keys, Hint{Due: time.Second}); got != 0 {
		t.Errorf("%d keys of a namespace without any were reached", got)
	}
	views, err := r.GetBatch(t.Context(), "ns", keys, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range views {
		v.Release()
		if got := class(i); strings.Contains(got, "due") {
			t.Errorf("block %d was used, and is %q", i, got)
		}
	}
	r.put(ns("new"), data(99, size))
	Declare(t.Context(), r.Store, "ns", []string{"new", keys[0]}, Hint{Shared: 2})
	if got := why(t, r.Store, "new").Levels[0].Class; !strings.Contains(got, "marked as shared") {
		t.Errorf("the new block is %q", got)
	}
}

// TestAdviseCarriesAHint: what is declared by a look-up counts with the request: for blocks that are here, and for
// those that are put for it.
func TestAdviseCarriesAHint(t *testing.T) {
	r := newRig(t, 8<<20, false)
	const size = 100_000
	keys := []string{"a", "b", "c"}
	class := func(key string) string { return why(t, r.Store, key).Levels[0].Class }
	r.put(ns("another"), data(99, size)) // policies remember a few blocks that are missing for each that is here
	Advise(t.Context(), r.Store, "ns", keys, Ask{Hint: Hint{Shared: 2, Due: 30 * time.Second}})
	for i, k := range keys {
		e := ns(k)
		if i > 0 {
			e.Parent = keys[i-1]
		}
		r.put(e, data(uint64(i), size))
	}
	for i, k := range keys {
		if got := class(k); strings.Contains(got, "due after") != (i < 2) { // the last block of a request is not due
			t.Errorf("%s was put, and is %q", k, got)
		}
	}
	r.advance(time.Minute)
	Advise(t.Context(), r.Store, "ns", keys, Ask{})
	r.want("a", data(0, size))
	if got := class("a"); strings.Contains(got, "due") {
		t.Errorf("nothing is declared any more, and it is %q", got)
	}
	other := []string{"d", "e", "f"}
	Advise(t.Context(), r.Store, "ns", other, Ask{Hint: Hint{Shared: 2}})
	for i, k := range other {
		r.put(ns(k), data(uint64(10+i), size))
		if got := class(k); strings.Contains(got, "marked as shared") != (i < 2) {
			t.Errorf("%s is %q", k, got)
		}
	}
}

// TestPutTogetherCarriesAHint: what is declared of blocks that are put reaches them, and those that were stored before.
func TestPutTogetherCarriesAHint(t *testing.T) {
	r := newRig(t, 8<<20, false)
	const size = 100_000
	var asked atomic.Int64
	var items []FuncItem
	parent := ""
	for i, k := range []string{"a", "b", "c", "d"} {
		items = append(items, filled(k, parent, data(uint64(i), size), &asked))
		parent = k
	}
	items[3].Entry.Parent = "" // a piece of its own
	class := func(i int) string { return why(t, r.Store, items[i].Entry.Key).Levels[0].Class }
	put := func(items []FuncItem, h Hint) {
		t.Helper()
		if err := errors.Join(r.PutBatchFunc(t.Context(), items, together, h)...); err != nil {
			t.Fatal(err)
		}
	}
	put(items[:1], Hint{})
	put(items, Hint{Shared: 2})
	for i := range items {
		if got := class(i); strings.Contains(got, "marked as shared") != (i < 2) {
			t.Errorf("block %d is %q", i, got)
		}
	}
	put(items, Hint{Shared: 4, Due: time.Minute})
	for i := range items {
		if got := class(i); !strings.Contains(got, "due after") {
			t.Errorf("block %d is %q", i, got)
		}
	}
}

// TestDeclareSoon: what is asked for soon is brought into memory, and no more than is advised.
func TestDeclareSoon(t *testing.T) {
	t.Run("hint", func(t *testing.T) {
		testSoon(t, 12, func(r *jobRank, keys []string) { Declare(t.Context(), r.Store, "ns", keys, Hint{Soon: true}) })
	})
	t.Run("advise", func(t *testing.T) {
		testSoon(t, 12, func(r *jobRank, keys []string) {
			Advise(t.Context(), r.Store, "ns", keys, Ask{PerBlock: time.Hour, Hint: Hint{Soon: true}})
		})
	})
	t.Run("against it", func(t *testing.T) {
		testSoon(t, 0, func(r *jobRank, keys []string) { Advise(t.Context(), r.Store, "ns", keys, Ask{Hint: Hint{Soon: true}}) })
	})
}

// testSoon declares that 12 blocks in files are asked for soon, of which some are to come.
func testSoon(t *testing.T, want int, declare func(r *jobRank, keys []string)) {
	const n, size = 12, 64 << 10
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
	j.open(1, 8<<20)
	r := j.ranks[0]
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprint("k", i))
		r.putKey(t, keys[i], data(uint64(i), size))
	}
	j.drainAll(0)
	r.dropMemory(t)
	here := func() int { return r.Probe(t.Context(), "ns", keys).Tiers["shm"] }
	Declare(t.Context(), r.Store, "ns", keys, Hint{Due: time.Minute})
	if reads := r.Stats().Tiers[0].Promoted; reads != 0 {
		t.Errorf("%d blocks came for a hint that is not of soon", reads)
	}
	declare(r, keys)
	eventually(t, "the blocks are here", func() bool {
		s := r.Stats()
		return s.Tiers[0].Promoted == uint64(want)
	})
	r.wantNothingComes(t)
	if got := here(); got != want {
		t.Errorf("%d blocks are in memory, want %d", got, want)
	}
}

// However many chains are declared to be asked for soon, little of them is on its way at once: gets
// wait behind it.
func TestDeclareSoonHasABound(t *testing.T) {
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
	j.open(1, 16<<20)
	a := j.ranks[0]
	const most = 32
	keys := keysOf(t, a, 2*most)
	j.drainAll(0)
	a.dropMemory(t)
	release := make(chan struct{})
	a.cold.set(hooks{read: func() { <-release }})
	for _, key := range keys {
		Declare(t.Context(), a.Store, "ns", []string{key}, Hint{Soon: true})
	}
	if blocks, bytes := load.OnItsWay(a.load); blocks != most || bytes != most*64<<10 {
		t.Errorf("%d blocks, %d bytes are on their way", blocks, bytes)
	}
	close(release)
	a.wantNothingComes(t)
}
