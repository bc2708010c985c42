package residency

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/internal/cpus"
	"cascadekv/internal/fault"
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
	if !v.unchecked(verify) {
		return true
	}
	err := v.Sound(ctx)
	v.checked = err == nil
	v.WithdrawIf(err)
	return v.checked
}

// unchecked reports whether Check has something to do.
func (v *View) unchecked(verify bool) bool {
	return !v.checked && v.level != nil && (v.bytes == nil || verify && !v.state.SkipVerify)
}

const (
	// checkPart is how many bytes are worth a goroutine of their own: to start one takes
	// as long as to verify some 100 KB.
	checkPart = 4 << 20

	// mostCheckers bounds the goroutines: a few fill the machine's memory bandwidth. Half
	// of the cores are left to those who use the bytes.
	mostCheckers = 8
)

// CheckAll is Check for several views, which may be nil, at once: which must not be used.
func CheckAll(ctx context.Context, views []*View, verify bool) (bad []int) {
	var bytes int64
	for _, v := range views {
		if v != nil && v.unchecked(verify) {
			bytes += v.Size()
		}
	}
	if n := min(bytes/checkPart, mostCheckers, int64(cpus.Count()/2)); n > 1 {
		return checkWith(ctx, n, views, verify)
	}
	for i, v := range views {
		if v != nil && !v.Check(ctx, verify) {
			bad = append(bad, i)
		}
	}
	return bad
}

// checkWith is CheckAll by so many goroutines.
func checkWith(ctx context.Context, checkers int64, views []*View, verify bool) (bad []int) {
	var wait sync.WaitGroup
	var next atomic.Int64
	wrong := make([]bool, len(views))
	for range checkers {
		wait.Go(func() {
			defer fault.Guard()()
			for i := next.Add(1) - 1; i < int64(len(views)); i = next.Add(1) - 1 {
				wrong[i] = views[i] != nil && !views[i].Check(ctx, verify)
			}
		})
	}
	wait.Wait()
	for i, yes := range wrong {
		if yes {
			bad = append(bad, i)
		}
	}
	return bad
}

// WithdrawIf withdraws a block whose bytes are bad, if that is what a read of it says.
func (v *View) WithdrawIf(err error) {
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
	v.WithdrawIf(err)
	return err
}

// Hash writes the block's bytes from from to to to h.
func (v *View) Hash(h *block.Hasher, from, to int64) error {
	if v.pin == nil {
		return tiers.Host(v.bytes).Hash(h, from, to)
	}
	return v.pin.Hash(h, from, to)
}
