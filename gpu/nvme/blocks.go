package nvme

import (
	"errors"
	"fmt"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

func (t *Tier) usableLocked() error {
	if t.mu.closed {
		return fmt.Errorf("%s: %w", Name, tiers.ErrClosed)
	}
	return nil
}

func (t *Tier) findLocked(id block.ID) (*stored, error) {
	if err := t.usableLocked(); err != nil {
		return nil, err
	}
	if b := t.mu.blocks[id]; b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("%s: block %v: %w", Name, id, tiers.ErrNotFound)
}

// forgetLocked makes a block none, for a reason if nobody evicts it. Its files are free when nobody has it
// pinned any more.
func (t *Tier) forgetLocked(b *stored, lost error) {
	if b.gone {
		return
	}
	t.mu.index.remove(b)
	t.mu.changes.add(encodeGone(b.stay))
	b.lost = lost
	t.freeLocked(b)
}

// freeLocked gives the files and the memory of a block back, as far as nobody uses them.
func (t *Tier) freeLocked(b *stored) {
	if b.mem != nil && b.users == 0 && (b.written || b.pins == 0) {
		t.mu.staging.give(b.at, t.files(b.info.Size))
		b.mem = nil
		t.wakeLocked()
	}
	if !b.gone || b.pins > 0 || b.freed {
		return
	}
	b.freed = true
	t.giveLocked(b.lot, t.files(b.info.Size))
	if b.written { // or the writer sees to it
		t.removeParts(b)
	}
	t.wakeLocked()
}

// removeParts has the store forget a block. It costs no I/O.
func (t *Tier) removeParts(b *stored) {
	for _, id := range t.parts(b, 0, t.files(b.info.Size)) {
		t.store.Remove(id)
	}
}

// Evict implements tiers.Tier.
func (t *Tier) Evict(id block.ID) error {
	defer t.lock()()
	b, err := t.findLocked(id)
	switch {
	case err != nil:
		return err
	case b.pins > 0:
		return fmt.Errorf("%s: block %v: %w", Name, id, tiers.ErrPinned)
	}
	t.forgetLocked(b, nil)
	return nil
}

// errName is of a name that no note has room for.
var errName = errors.New("no such name: its namespace, key or parent is too long, or it has no key")

// Link implements tiers.Tier. It does nothing if a newer record of the name is here.
func (t *Tier) Link(id block.ID, n block.Name) error {
	defer t.lock()()
	b, err := t.findLocked(id)
	if err != nil {
		return err
	}
	return t.linkLocked(b, n)
}

func (t *Tier) linkLocked(b *stored, n block.Name) error {
	if err := checkName(n); err != nil {
		return err
	}
	if t.mu.index.link(b, n) {
		t.mu.changes.add(encodeName(b.stay, n))
	}
	return nil
}

func checkName(n block.Name) error {
	if !block.IsName(n.Namespace, n.Key) || len(n.Parent) > block.MaxKey {
		return fmt.Errorf("%s: %w: %w", Name, tiers.ErrUnavailable, errName)
	}
	return nil
}

// Unlink implements tiers.Tier: the record of the name is withdrawn, of whatever block.
func (t *Tier) Unlink(_ block.ID, n block.Name) error {
	defer t.lock()()
	if err := t.usableLocked(); err != nil {
		return err
	}
	if old := t.mu.index.older(n); old != nil {
		t.mu.index.unlink(old)
		t.mu.changes.add(encodeUnlink(n))
	}
	return nil
}

// SetLayout implements tiers.Tier.
func (t *Tier) SetLayout(ns string, seq uint64, l block.Layout) error {
	if err := l.Check(); err != nil {
		return err
	}
	defer t.lock()()
	if err := t.usableLocked(); err != nil {
		return err
	}
	if len(ns) > block.MaxKey {
		return fmt.Errorf("%s: %w: %w", Name, tiers.ErrUnavailable, errName)
	}
	if t.mu.index.setLayout(ns, layoutOf{seq, l}) {
		t.mu.changes.add(encodeLayout(ns, seq, l))
	}
	return nil
}

// Layout implements tiers.Tier.
func (t *Tier) Layout(ns string) (seq uint64, l block.Layout) {
	defer t.lock()()
	x := t.mu.layouts[ns]
	return x.seq, x.layout
}

// Recover implements tiers.Tier. What it hands over is verified when it is read.
func (t *Tier) Recover(fn func(tiers.Entry) error) error {
	t.mu.Lock()
	if err := t.usableLocked(); err != nil {
		t.mu.Unlock()
		return err
	}
	entries := make([]tiers.Entry, 0, len(t.mu.blocks))
	for _, b := range t.mu.blocks {
		e := tiers.Entry{Info: b.info}
		for _, n := range b.names {
			e.Names = append(e.Names, n.Name)
		}
		entries = append(entries, e)
	}
	t.mu.Unlock()
	for _, e := range entries {
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// Rename implements tiers.Memory.
func (t *Tier) Rename(old, id block.ID) error {
	defer t.lock()()
	b, err := t.findLocked(old)
	switch {
	case err != nil:
		return err
	case t.mu.blocks[id] != nil:
		return fmt.Errorf("%s: block %v: %w", Name, id, tiers.ErrExists)
	}
	t.mu.index.rename(b, id)
	t.mu.changes.add(encodeBlock(b.stay, b.info))
	return nil
}

// Place implements tiers.Memory.
func (t *Tier) Place(id block.ID) (tiers.Place, error) {
	defer t.lock()()
	b, err := t.findLocked(id)
	if err != nil {
		return tiers.Place{}, err
	}
	return tiers.Place{Offset: -1, Generation: b.stay.generation()}, nil
}

// Pin implements tiers.Tier.
func (t *Tier) Pin(id block.ID) (tiers.Pin, error) {
	defer t.lock()()
	b, err := t.findLocked(id)
	if err != nil {
		return nil, err
	}
	return t.pinLocked(b), nil
}

// PinPlace implements tiers.Memory.
func (t *Tier) PinPlace(at tiers.Place, length int64) (tiers.Pin, error) {
	defer t.lock()()
	if err := t.usableLocked(); err != nil {
		return nil, err
	}
	b := t.mu.stays[at.Generation]
	if b == nil || at.Offset != -1 || length < 0 || length > b.info.Size {
		return nil, fmt.Errorf("%s: no block of %d bytes at %+v: %w", Name, length, at, tiers.ErrNotFound)
	}
	return t.pinLocked(b), nil
}

func (t *Tier) pinLocked(b *stored) *pin {
	b.pins++
	t.mu.users++
	return &pin{t: t, b: b, size: b.info.Size}
}

// unpinLocked ends what pinLocked began.
func (t *Tier) unpinLocked(b *stored) {
	b.pins--
	t.mu.users--
	t.freeLocked(b)
	if t.mu.users == 0 {
		t.wakeLocked()
	}
}
