package tiertest

import (
	"context"
	"fmt"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// sizes touch every edge of pages, size classes and inline storage.
var sizes = []int64{0, 1, 28, 512, 513, 4095, 4096, 4097, 42 << 10, 2 << 20, 9<<20 + 1}

func (c Config) roundTrip(t *testing.T) {
	tr := c.fresh(t, roomy)
	for i, size := range sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			it := item(uint64(i), size)
			wantMiss(t, tr, it.Info.ID)
			put(t, tr, it)
			readBack(t, tr, it)
			readBack(t, tr, it)
		})
	}
	for i, size := range sizes {
		it := item(uint64(i), size)
		readBack(t, tr, it)
		if err := tr.Evict(it.Info.ID); err != nil {
			t.Errorf("Evict of %d bytes: %v", size, err)
		}
		wantMiss(t, tr, it.Info.ID)
	}
	if u := tr.Usage(); u.Blocks != 0 || u.Payload != 0 {
		t.Errorf("usage after all is evicted: %+v", u)
	}
}

// batch tries that a Put of many stores all or nothing.
func (c Config) batch(t *testing.T) {
	tr := c.fresh(t, roomy)
	all := make([]tiers.Item, 0, 33)
	for i := range 33 {
		all = append(all, item(uint64(100+i), int64(i*i*97)))
	}
	put(t, tr)
	put(t, tr, all[:32]...)
	for _, it := range all[:32] {
		readBack(t, tr, it)
	}
	before := tr.Usage()
	extra := item(999, 5000)
	failing := map[string][]tiers.Item{
		"last is stored":   {all[32], extra, all[7]},
		"first is stored":  {all[7], all[32], extra},
		"same block twice": {all[32], extra, all[32]},
	}
	for name, items := range failing {
		t.Run(name, func(t *testing.T) {
			wantErr(t, "Put", tr.Put(t.Context(), items...), tiers.ErrExists)
			wantMiss(t, tr, all[32].Info.ID)
			wantMiss(t, tr, extra.Info.ID)
			readBack(t, tr, all[7])
			if u := tr.Usage(); u.Blocks != before.Blocks || u.Payload != before.Payload {
				t.Errorf("usage changed from %+v to %+v", before, u)
			}
		})
	}
	put(t, tr, all[32], extra)
	readBack(t, tr, all[32])
	readBack(t, tr, extra)
}

func (c Config) exists(t *testing.T) {
	tr := c.fresh(t, roomy)
	it := item(1, 4096)
	put(t, tr, it)
	wantErr(t, "second Put", tr.Put(t.Context(), it), tiers.ErrExists)
	readBack(t, tr, it)
	if err := tr.Evict(it.Info.ID); err != nil {
		t.Fatalf("Evict: %v", err)
	}
	put(t, tr, it)
	readBack(t, tr, it)
}

func (c Config) notFound(t *testing.T) {
	tr := c.fresh(t, roomy)
	put(t, tr, item(1, 100))
	absent := item(2, 100).Info.ID
	wantMiss(t, tr, absent)
	wantErr(t, "Evict", tr.Evict(absent), tiers.ErrNotFound)
	if c.Persistent {
		n := block.Name{Namespace: "ns", Key: "k", Seq: 1}
		wantErr(t, "Link", tr.Link(absent, n), tiers.ErrNotFound)
	}
	if err := tr.Unlink(absent, block.Name{Namespace: "ns", Key: "k", Seq: 2}); err != nil {
		t.Errorf("Unlink of a name of an absent block: %v", err)
	}
}

// canceled tries that a context that is done never leaves half a batch.
func (c Config) canceled(t *testing.T) {
	tr := c.fresh(t, roomy)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a, b := item(1, 5000), item(2, 6000)
	if err := tr.Put(ctx, a, b); err != nil {
		wantMiss(t, tr, a.Info.ID)
		wantMiss(t, tr, b.Info.ID)
		put(t, tr, a, b)
	}
	readBack(t, tr, a)
	readBack(t, tr, b)
}

func (c Config) pinned(t *testing.T) {
	tr := c.fresh(t, roomy)
	it := item(1, 42<<10)
	put(t, tr, it)
	first, err := tr.Pin(it.Info.ID)
	if err != nil {
		t.Fatalf("Pin: %v", err)
	}
	defer first.Release()
	second, err := tr.Pin(it.Info.ID)
	if err != nil {
		t.Fatalf("second Pin: %v", err)
	}
	defer second.Release()
	wantErr(t, "Evict with two pins", tr.Evict(it.Info.ID), tiers.ErrPinned)
	first.Release()
	first.Release()
	wantErr(t, "Evict with one pin", tr.Evict(it.Info.ID), tiers.ErrPinned)
	for i := range 20 {
		other := item(uint64(50+i), 42<<10)
		put(t, tr, other)
		if err := tr.Evict(other.Info.ID); err != nil {
			t.Fatalf("Evict of another block: %v", err)
		}
	}
	samePin(t, second, it)
	second.Release()
	if err := tr.Evict(it.Info.ID); err != nil {
		t.Errorf("Evict after the pins are gone: %v", err)
	}
}

func (c Config) usage(t *testing.T) {
	tr := c.fresh(t, roomy)
	var sum int64
	for i := range 10 {
		it := item(uint64(i), int64(1000*i+1))
		put(t, tr, it)
		sum += it.Info.Size
	}
	u := tr.Usage()
	if u.Blocks != 10 || u.Payload != sum || u.Used < sum {
		t.Errorf("usage = %+v, want 10 blocks, payload %d and at least as much used", u, sum)
	}
	if c.Bounded && (u.Capacity <= 0 || u.Used > u.Capacity) {
		t.Errorf("usage of a bounded tier = %+v", u)
	}
	if tr.Name() == "" {
		t.Error("the tier has no name")
	}
}

func (c Config) full(t *testing.T) {
	tr := c.fresh(t, tight)
	const size = 64 << 10
	var stored []tiers.Item
	for i := 0; ; i++ {
		it := item(uint64(i), size)
		err := tr.Put(t.Context(), it)
		if err != nil {
			wantErr(t, "Put into a full tier", err, tiers.ErrFull)
			wantMiss(t, tr, it.Info.ID)
			break
		}
		stored = append(stored, it)
		if int64(i)*size > tr.Usage().Capacity {
			t.Fatalf("%d bytes stored in a capacity of %d", int64(i)*size, tr.Usage().Capacity)
		}
	}
	if len(stored) < tight/size/2 {
		t.Fatalf("full after %d blocks of %d bytes, capacity %d", len(stored), size, tight)
	}
	two := []tiers.Item{item(5000, size), item(5001, size)}
	wantErr(t, "batch into a full tier", tr.Put(t.Context(), two...), tiers.ErrFull)
	for _, it := range stored {
		readBack(t, tr, it)
	}
	if err := tr.Evict(stored[3].Info.ID); err != nil {
		t.Fatalf("Evict: %v", err)
	}
	put(t, tr, two[0])
	readBack(t, tr, two[0])
	wantMiss(t, tr, two[1].Info.ID)
	for i, it := range stored {
		if i != 3 {
			readBack(t, tr, it)
		}
	}
}

func (c Config) tooLarge(t *testing.T) {
	tr := c.fresh(t, tight)
	it := item(1, tr.Usage().Capacity+1)
	wantErr(t, "Put", tr.Put(t.Context(), it), tiers.ErrTooLarge)
	wantMiss(t, tr, it.Info.ID)
	small := item(2, 100)
	wantErr(t, "batch", tr.Put(t.Context(), small, it), tiers.ErrTooLarge)
	wantMiss(t, tr, small.Info.ID)
	put(t, tr, small)
	readBack(t, tr, small)
}

func (c Config) corrupt(t *testing.T) {
	for _, size := range []int64{1, 28, 4096, 42 << 10, 2 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			tr := c.fresh(t, roomy)
			bad, good := item(1, size), item(2, size)
			put(t, tr, bad, good)
			c.Corrupt(t, tr.dir, tr.Tier, bad.Info.ID)
			p, err := tr.Pin(bad.Info.ID)
			if err != nil {
				t.Fatalf("Pin: %v", err)
			}
			wantErr(t, "ReadInto", p.ReadInto(t.Context(), make([]byte, size)), tiers.ErrCorrupt)
			p.Release()
			wantMiss(t, tr, bad.Info.ID)
			wantErr(t, "Evict", tr.Evict(bad.Info.ID), tiers.ErrNotFound)
			readBack(t, tr, good)
			put(t, tr, bad)
			readBack(t, tr, bad)
			readBack(t, tr, good)
		})
	}
}

func (c Config) recoverError(t *testing.T) {
	if !c.Persistent {
		t.Skip("the tier recovers nothing: it is not persistent")
	}
	o := c.fresh(t, roomy)
	put(t, o, item(1, 100), item(2, 100))
	if err := o.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	tr := c.New(t, o.dir, roomy)
	defer tr.Close()
	stop := fmt.Errorf("enough")
	calls := 0
	err := tr.Recover(func(tiers.Entry) error { calls++; return stop })
	wantErr(t, "Recover", err, stop)
	if calls != 1 {
		t.Errorf("Recover called fn %d times after it failed", calls-1)
	}
}
