package memory

import "cascadekv/internal/block"

// layouts are how the blocks of each namespace are made, with their records. Nothing is
// recorded in memory that does not outlive the process. The space's mutex guards them.
type layouts map[string]layoutRef

// layoutRef is the newest layout of a namespace and where its record is; 0 bytes: nowhere.
type layoutRef struct {
	seq          uint64
	layout       block.Layout
	offset, size int64
}

// SetLayout implements tiers.Tier.
func (t *Tier) SetLayout(ns string, seq uint64, l block.Layout) error {
	if err := l.Check(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usableLocked(); err != nil {
		return err
	}
	next := layoutRef{seq: seq, layout: l}
	if t.super != nil {
		next.size = layoutRecordLen(ns, l)
		var err error
		if next.offset, err = t.allocRecordLocked(&slot{}, next.size); err != nil {
			return err
		}
		writeLayout(t.bytesOf(next.offset, next.size), ns, seq, l)
	}
	old := t.layouts[ns]
	if old.seq >= seq {
		old, next = next, old
	}
	t.layouts[ns] = next
	t.dropLayoutLocked(old)
	return nil
}

func (t *Tier) dropLayoutLocked(old layoutRef) {
	if old.size > 0 {
		retract(t.bytesOf(old.offset, old.size))
		t.mu.alloc.Release(old.offset, old.size)
	}
}

// Layout implements tiers.Tier.
func (t *Tier) Layout(ns string) (seq uint64, l block.Layout) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.layouts[ns]
	return r.seq, r.layout
}

// takeLayouts takes over those of records that a walk came upon that are the newest of
// their namespaces, of which the allocator has the room; bad reports which it has not.
func (t *Tier) takeLayouts(all []found, bad func(i int) bool) {
	for i, f := range all {
		r := layoutRef{f.seq, f.layout, f.cell, layoutRecordLen(f.space, f.layout)}
		switch old := t.layouts[f.space]; {
		case bad(i):
		case old.seq >= r.seq:
			t.dropLayoutLocked(r)
		default:
			t.layouts[f.space] = r
			t.dropLayoutLocked(old)
		}
	}
}
