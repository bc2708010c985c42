package tiertest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// together tries that blocks which are read together come, or fail, each by
// itself, and are reported once.
func (c Config) together(t *testing.T) {
	tr := c.fresh(t, roomy)
	items := make([]tiers.Item, 40)
	for i := range items {
		items[i] = item(uint64(i+1), int64(i*i*97))
	}
	put(t, tr, items...)
	b := batch{tr: tr.Tier}
	want := make([]error, len(items))
	b.want(t, t.Context(), items, want)
	if c.Corrupt != nil {
		c.Corrupt(t, tr.dir, tr.Tier, items[17].Info.ID)
		want[17] = tiers.ErrCorrupt
		b.want(t, t.Context(), items, want)
		wantMiss(t, tr, items[17].Info.ID)
		readBack(t, tr, items[18])
		put(t, tr, items[17])
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range want {
		want[i] = tiers.ErrUnavailable
	}
	b.want(t, ended, items, want)
	b.want(t, t.Context(), nil, nil)
}

// batch reads blocks together and notes what is reported of each.
type batch struct {
	tr       tiers.Tier
	mu       sync.Mutex
	outcomes []error
	of       map[block.ID]int
}

func (b *batch) want(t *testing.T, ctx context.Context, items []tiers.Item, want []error) {
	t.Helper()
	reads := make([]tiers.Read, len(items))
	b.outcomes, b.of = make([]error, len(items)), map[block.ID]int{}
	for i, it := range items {
		p, err := b.tr.Pin(it.Info.ID)
		if err != nil {
			t.Fatalf("Pin of block %d: %v", i, err)
		}
		defer p.Release()
		reads[i] = tiers.Read{Pin: p, Dst: make([]byte, it.Info.Size), Done: func(err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.outcomes[i] = err
			b.of[it.Info.ID]++
			if err == nil && !bytes.Equal(reads[i].Dst, it.Data) {
				t.Errorf("block %d is told of before it has its bytes", i)
			}
		}}
	}
	files, ok := b.tr.(tiers.Files)
	if !ok {
		files = tiers.Plain{Tier: b.tr}
	}
	errs := files.ReadBatch(ctx, reads)
	if len(errs) != len(items) {
		t.Fatalf("%d outcomes of %d blocks", len(errs), len(items))
	}
	for i, err := range errs {
		if !errors.Is(err, want[i]) || want[i] == nil && err != nil {
			t.Errorf("block %d: %v, want %v", i, err, want[i])
		}
		if n := b.of[items[i].Info.ID]; n != 1 || !errors.Is(b.outcomes[i], want[i]) {
			t.Errorf("block %d was told of %d times, last with %v", i, n, b.outcomes[i])
		}
	}
}
