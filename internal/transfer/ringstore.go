package transfer

import (
	"context"
	"sync/atomic"

	"cascadekv/cascade"
	"cascadekv/gpu/gio"
	"cascadekv/internal/region"
)

// beginStore has the ring write those blocks that it can, once their event has come, and holds the keys until then, all of them: they are
// stored in their order.
func (t *Transfer) beginStore(ctx context.Context, at []int) {
	t.held = append(t.held, at...)
	if ctx.Err() != nil {
		return
	}
	b := t.ring.Batch(gio.Write, t.opt.After.Word, t.opt.After.Value)
	if b == nil {
		return
	}
	d := cascade.Direct{Store: t.pool.store}
	var keys []int
	var from [][]region.Extent
	waiting := &t.part.waiting
	for _, i := range at {
		size := t.layout.Size(i)
		if before := waiting.Add(size) - size; d.Admits(t.entry(i), size, t.opt.Replace, before) {
			keys, from = append(keys, i), append(from, t.layout.Block(i))
		} else {
			waiting.Add(-size)
		}
	}
	f := &flight{batch: b, counts: []*atomic.Int64{waiting}}
	for k, has := range b.Store(from) {
		i := keys[k]
		if size := t.layout.Size(i); has {
			f.keys, f.bytes = append(f.keys, i), f.bytes+size
		} else {
			waiting.Add(-size)
		}
	}
	if len(f.keys) == 0 {
		f.end()
		return
	}
	if err := b.Begin(); err != nil {
		t.pool.log.Warn("a ring takes no writes", "err", err)
		f.end()
		return
	}
	t.flights = append(t.flights, f)
}

// pay counts what a flight writes in the budget of the level, once its event has come: what waits for that costs nobody else.
func (t *Transfer) pay(f *flight) {
	f.uncount()
	f.counted = true
	cascade.Direct{Store: t.pool.store}.Count(f.bytes)
}

// payBack gives back the part of a block that is not written.
func (t *Transfer) payBack(f *flight, i int) {
	if f.counted {
		cascade.Direct{Store: t.pool.store}.Count(-t.layout.Size(i))
	}
}

// place makes stages of the blocks that a flight has written. It waits for the disk until ctx ends.
func (t *Transfer) place(ctx context.Context, f *flight) {
	d := cascade.Direct{Store: t.pool.store}
	all, err := f.batch.Register(ctx, d.IDBits(), t.spread(f.keys))
	if err != nil {
		t.pool.log.Warn("blocks that a ring has written are not durable: they are stored by way of memory", "blocks", len(f.keys), "err", err)
		d.Pause()
	}
	if t.placed == nil {
		t.placed = map[int]*cascade.Stage{}
	}
	for k, i := range f.keys {
		if w := all[k]; w.Slot != nil {
			t.placed[i] = d.Stage(w.Slot, w.Info)
		} else {
			t.payBack(f, i)
		}
	}
}

// release has the held keys be stored, if their event has come, but for those that a disk may be reading.
func (t *Transfer) release(ctx context.Context, came bool) {
	for _, i := range t.held {
		switch {
		case t.status[i] == Stuck:
		case ctx.Err() != nil:
			t.status[i] = Cancelled
		case came:
			t.missed = append(t.missed, i)
		}
	}
	t.held = nil
}
