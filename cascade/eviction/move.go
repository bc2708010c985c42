package eviction

import (
	"context"

	"cascadekv/cascade/residency"
	"cascadekv/tiers"
)

// Promote copies hits of a slower memory tier into the fastest one, where that
// one's policy admits them.
func (e *Evictor) Promote(ctx context.Context, views []*residency.View) {
	if len(e.state.Mem) == 1 {
		return
	}
	for _, v := range views {
		if v != nil && v.Resident() && v.In().Index > 0 && e.admits(v.Block(), e.state.Mem[0]) {
			// A promotion that finds no room is not made.
			_, _ = e.copyTo(ctx, v, e.state.Mem[0], Unheld)
		}
	}
}

func (e *Evictor) admits(b *residency.Block, m *residency.Level) bool {
	e.state.Mu.Lock()
	defer e.state.Mu.Unlock()
	return m.AdmitsLocked(b)
}

// copyTo puts a copy of a viewed block into memory tier m, unless it is there, or nobody's, by then.
func (e *Evictor) copyTo(ctx context.Context, v *residency.View, m *residency.Level, most Price) (copied bool, err error) {
	slot, err := e.Reserve(ctx, m, v.Size(), most)
	if err != nil {
		return false, err
	}
	return e.copyInto(ctx, v, m, slot)
}

// copyInto is copyTo into a slot, which is used up, once nothing writes to it any more.
func (e *Evictor) copyInto(ctx context.Context, v *residency.View, m *residency.Level, slot tiers.Slot) (copied bool, err error) {
	defer func() { residency.AfterIO(err, slot.Abort) }()
	if err := v.CopyTo(ctx, slot); err != nil {
		return false, err
	}
	e.state.Mu.Lock()
	defer e.state.Mu.Unlock()
	b := v.Block()
	if b.In(m.Index) || len(b.Names()) == 0 {
		return false, nil
	}
	if err := slot.Commit(b.Info, b.Records()); err != nil {
		return false, e.state.RoomError(m, v.Size(), err)
	}
	e.state.EnterLocked(b, m)
	if in := v.In(); in == nil || in.Index > m.Index {
		m.Stats.Promoted++
	}
	return true, nil
}
