package residency

import (
	"context"
	"errors"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Bytes of blocks are moved, verified and hashed by the slots and pins of tiers.
// What must be read by others, a socket or a tier of files, and lies where the
// process can not address it, is read into a buffer first.

// Buffer returns memory for bytes that are in no tier, and what gives it back.
func (s *State) Buffer(size int64) (bytes []byte, free func(), err error) {
	if size == 0 {
		return nil, func() {}, nil
	}
	if s.ReadBuffers != nil {
		if bytes, free, ok := s.ReadBuffers(size); ok {
			return bytes, free, nil
		}
	}
	m, err := arena.MapAnonymous(size)
	if err != nil {
		return nil, nil, err
	}
	return m.Bytes(), func() {
		if err := m.Close(); err != nil {
			s.Log.Error("private memory", "err", err)
		}
	}, nil
}

// BytesOf returns the bytes of a pin, in place if the process can address them,
// otherwise in a buffer, verified; free gives that back, nil for none.
func (s *State) BytesOf(ctx context.Context, p tiers.Pin) (bytes []byte, free func(), err error) {
	if bytes = p.Bytes(); bytes != nil {
		return bytes, nil, nil
	}
	bytes, free, err = s.Buffer(p.Info().Size)
	if err != nil {
		return nil, nil, err
	}
	if err = p.ReadInto(ctx, bytes); err != nil {
		AfterIO(err, free)
		return nil, nil, err
	}
	return bytes, free, nil
}

// Sound verifies the bytes of a view in a tier, and sees to it that there are
// Bytes. ErrCorrupt: the block must be withdrawn.
func (v *View) Sound(ctx context.Context) (err error) {
	if v.bytes == nil {
		v.bytes, v.free, err = v.state.BytesOf(ctx, v.pin)
		return err
	}
	crc, err := v.pin.CRC(0, 0, v.Size())
	if err == nil && crc != v.pin.Info().CRC {
		err = tiers.ErrCorrupt
	}
	return err
}

// Check is Sound, once, for a view that is handed out: false when it must not be
// used, and withdrawn when its bytes are bad. Without verify it sees to Bytes only.
func (v *View) Check(ctx context.Context, verify bool) bool {
	if v.checked || v.level == nil || v.bytes != nil && !(verify && !v.state.SkipVerify) {
		return true
	}
	err := v.Sound(ctx)
	v.checked = err == nil
	v.withdrawIf(err)
	return v.checked
}

// withdrawIf withdraws a block whose bytes are bad.
func (v *View) withdrawIf(err error) {
	if v.level != nil && errors.Is(err, tiers.ErrCorrupt) {
		v.state.Mu.Lock()
		defer v.state.Mu.Unlock()
		v.WithdrawLocked()
	}
}

// CopyTo fills a slot with the block. Errors: those of tiers.Slot.CopyFrom; what
// is corrupt is withdrawn.
func (v *View) CopyTo(ctx context.Context, slot tiers.Slot) error {
	if v.pin == nil {
		_, err := slot.Write(0, 0, v.bytes)
		return err
	}
	err := slot.CopyFrom(ctx, v.pin)
	v.withdrawIf(err)
	return err
}

// Hash writes the block's bytes from from to to to h.
func (v *View) Hash(h *block.Hasher, from, to int64) error {
	if v.pin == nil {
		return tiers.Host(v.bytes).Hash(h, from, to)
	}
	return v.pin.Hash(h, from, to)
}
