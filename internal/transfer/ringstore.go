package transfer

import (
	"context"

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
	for _, i := range at {
		if d.Begin(t.entry(i), t.layout.Size(i), t.opt.Replace) {
			keys, from = append(keys, i), append(from, t.layout.Block(i))
		}
	}
	f := &flight{batch: b}
	for k, has := range b.Store(from) {
		if i := keys[k]; has {
			f.keys = append(f.keys, i)
		} else {
			d.Return(t.layout.Size(i))
		}
	}
	if len(f.keys) == 0 {
		b.End()
		return
	}
	if err := b.Begin(); err != nil {
		t.pool.log.Warn("a ring takes no writes", "err", err)
		t.unwanted(f)
		f.end()
		return
	}
	t.flights = append(t.flights, f)
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
			d.Return(t.layout.Size(i))
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
