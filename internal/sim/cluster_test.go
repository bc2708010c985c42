package sim

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"cascadekv/dht/fabric"
)

// published returns a cluster whose names are published and settled.
func published(t *testing.T) *cluster {
	t.Helper()
	o := Options{Ranks: 5, Names: 8, Chain: 4, Seed: 1}
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	c, err := newCluster(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	for _, step := range []func(context.Context) error{c.start, c.publish} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func TestWrongBytesAreNoticed(t *testing.T) {
	c := published(t)
	c.names.block(3)[0] ^= 1
	var single, chains verdict
	var messages histogram
	if err := errors.Join(c.getAll(t.Context(), "get", &single), c.getChains(t.Context(), "get", &chains, &messages)); err != nil {
		t.Fatal(err)
	}
	for _, v := range []*verdict{&single, &chains} {
		if w, u, n := v.wrong.Load(), v.unknown.Load(), int(v.asked.Load()); w != 1 || u != 0 || n != len(c.names.keys) {
			t.Errorf("%d wrong and %d unknown of %d, want 1 and 0 of %d", w, u, n, len(c.names.keys))
		}
	}
}

func TestLostNamesAreNoticed(t *testing.T) {
	c := published(t)
	owner := c.names.owners[0]
	lost := int64(len(c.locals[owner].all()))
	c.locals[owner].Cleared(namespace, false, math.MaxUint64)
	var v verdict
	if err := c.getAll(t.Context(), "get", &v); err != nil {
		t.Fatal(err)
	}
	if v.wrong.Load() != 0 || v.unknown.Load() != lost || lost == 0 {
		t.Errorf("%d wrong and %d unknown, want 0 and %d", v.wrong.Load(), v.unknown.Load(), lost)
	}
	// The owner was asked once more where the block is.
	if v.lookups.quantile(1) < 2 {
		t.Errorf("at most %d messages", v.lookups.quantile(1))
	}
}

func TestMovedBlocksAreFound(t *testing.T) {
	c := published(t)
	owner, asker := c.names.owners[0], c.asker("get", 0)
	moved := c.locals[owner].change(c.names.keys[0], false)
	// Two reads and messages to the home and to the owner; one less if the
	// asker is the home.
	if got, spent := c.get(t.Context(), asker, 0); got != right || spent.reads.Load() != 2 || spent.hops() < 3 || spent.hops() > 4 {
		t.Errorf("before the homes know: outcome %d, %d reads of %d hops", got, spent.reads.Load(), spent.hops())
	}
	c.nodes[owner].Publish(moved)
	c.nodes[owner].Settled(t.Context())
	if got, spent := c.get(t.Context(), asker, 0); got != right || spent.hops() > 2 {
		t.Errorf("when the homes know: outcome %d after %d hops", got, spent.hops())
	}
}

func TestMisplacedEntriesAreNoticed(t *testing.T) {
	c := published(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	due := c.due(c.ring.Load())
	if err := c.until(ctx, due); err != nil {
		t.Fatal(err)
	}
	due[2]++
	if err := c.until(ctx, due); !errors.Is(err, ErrUnsettled) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one entry less than due: %v", err)
	}
}

func TestReadsThatNobodyAskedForAreCounted(t *testing.T) {
	c := published(t)
	var v verdict
	if err := c.getAll(t.Context(), "get", &v); err != nil || c.moved.Load() != 0 {
		t.Fatalf("%d bytes beside the gets, %v", c.moved.Load(), err)
	}
	asker := c.asker("read", 0)
	found := c.nodes[asker].Locate(t.Context(), namespace, c.names.keys[:1])
	if got := c.read(t.Context(), asker, 0, found[0]); got != right || c.moved.Load() != blockBytes {
		t.Errorf("outcome %d, %d bytes, want %d", got, c.moved.Load(), blockBytes)
	}
}

func TestHoldRefusesWhatIsNotThere(t *testing.T) {
	c := published(t)
	owner := c.names.owners[0]
	good := c.names.statement(0, 0, true)
	if h, err := c.locals[owner].Hold(good.Source()); err != nil || !c.names.right(h.Bytes(), 0) {
		t.Fatalf("the block itself: %v", err)
	}
	for what, spoil := range map[string]func(*fabric.Source){
		"generation":      func(s *fabric.Source) { s.Generation++ },
		"region":          func(s *fabric.Source) { s.Region++ },
		"beyond":          func(s *fabric.Source) { s.Offset = int64(len(c.names.keys)) * blockBytes },
		"before":          func(s *fabric.Source) { s.Offset = -1 },
		"into the next":   func(s *fabric.Source) { s.Length++ },
		"negative length": func(s *fabric.Source) { s.Length = -1 },
	} {
		src := good.Source()
		spoil(&src)
		if _, err := c.locals[owner].Hold(src); !errors.Is(err, fabric.ErrStale) {
			t.Errorf("%s: %v, want ErrStale", what, err)
		}
	}
	other := (owner + 1) % fabric.Rank(c.o.Ranks)
	if _, err := c.locals[other].Hold(good.Source()); !errors.Is(err, fabric.ErrStale) {
		t.Errorf("another rank: %v, want ErrStale", err)
	}
}

// A ring is shared only among nodes that know the same ranks.
func TestSharedRingsAreOfTheRanksAskedFor(t *testing.T) {
	c := published(t)
	all := c.ring.Load()
	if got, err := c.shared(all, c.ranks); err != nil || got != all {
		t.Errorf("the ring of all ranks was computed again: %v", err)
	}
	other := append(slices.Clone(c.ranks[1:]), 99) // as many ranks
	if got, err := c.shared(all, other); err != nil || !slices.Equal(got.Ranks(), other) {
		t.Errorf("not the ring of %v: %v", other, err)
	}
	if got, err := c.shared(nil, []fabric.Rank{99}); err != nil || !slices.Equal(got.Ranks(), []fabric.Rank{99}) {
		t.Errorf("not the ring of one that joins: %v", err)
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	if h.mean() != 0 || h.quantile(1) != 0 {
		t.Errorf("empty: mean %v, max %d", h.mean(), h.quantile(1))
	}
	for v := range 10 {
		h.add(v)
	}
	h.add(1 << 20)
	if got := []int{h.quantile(0.1), h.quantile(0.5), h.quantile(10.0 / 11), h.quantile(1)}; got[0] != 1 || got[1] != 5 || got[2] != 9 || got[3] != len(h)-1 {
		t.Errorf("quantiles %v", got)
	}
	if got := unevenness([]int{1, 2, 3}); got != 1.5 {
		t.Errorf("unevenness %v, want 1.5", got)
	}
}
