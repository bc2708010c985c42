package cascade

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"cascadekv/tiers"
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

// TestDeclareSoon: what is asked for soon is brought into memory.
func TestDeclareSoon(t *testing.T) {
	const n, size = 4, 64 << 10
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
	Declare(t.Context(), r.Store, "ns", keys, Hint{Soon: true})
	eventually(t, "the blocks are here", func() bool {
		s := r.Stats()
		return s.Tiers[0].Promoted == n
	})
	if got := here(); got != n {
		t.Errorf("%d blocks are in memory, want %d", got, n)
	}
}

// However many chains are declared to be asked for soon, little of them is on its way at once: gets
// wait behind it.
func TestDeclareSoonHasABound(t *testing.T) {
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
	j.open(1, 16<<20)
	a := j.ranks[0]
	keys := keysOf(t, a, 2*soonBlocks)
	j.drainAll(0)
	a.dropMemory(t)
	release := make(chan struct{})
	a.state.Cold.Files = heldFiles{a.state.Cold.Files, release}
	for _, key := range keys {
		Declare(t.Context(), a.Store, "ns", []string{key}, Hint{Soon: true})
	}
	coming := func() soon {
		a.state.Mu.Lock()
		defer a.state.Mu.Unlock()
		return a.soon
	}
	if got := coming(); got.blocks != soonBlocks || got.bytes != soonBlocks*64<<10 {
		t.Errorf("%+v is on its way", got)
	}
	close(release)
	for end := time.Now().Add(time.Minute); coming() != (soon{}); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v is still on its way", coming())
		}
	}
}

// heldFiles reads once release is closed.
type heldFiles struct {
	tiers.Files
	release chan struct{}
}

func (f heldFiles) ReadBatch(ctx context.Context, reads []tiers.Read) []error {
	<-f.release
	return f.Files.ReadBatch(ctx, reads)
}
