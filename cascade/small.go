package cascade

import (
	"context"
	"slices"
	"time"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/inject"
)

// PutNow stores a small value, which is copied, by name as Stage and Commit do, if that takes
// no wait of any kind: memory has room for it, or eviction alone makes some, and nobody has
// to be asked. done is false where it does, and where it fails for another reason than that
// of Commit; nothing was stored then. Errors: those of Commit.
func PutNow(s *Store, e Entry, value []byte) (done bool, err error) {
	if waitsFor(s, &e) || e.Check() != nil {
		return false, nil
	}
	m, size := s.state.Mem[0], int64(len(value))
	slot := s.evict.ReserveNow(m, size, eviction.AnyBlock)
	if slot == nil {
		return false, nil
	}
	if slot.Bytes() == nil { // a device's
		slot.Abort()
		return false, nil
	}
	st, err := s.newStage(m, slot, size)
	if err != nil {
		return false, nil
	}
	st.Append(value)
	return true, st.Commit(context.Background(), e)
}

// waitsFor reports whether more than this rank's memory may have to be asked for a put of e.
func waitsFor(s *Store, e *Entry) bool {
	return (e.When != Always || e.KeepTTL) && s.others.AsksElsewhere() || e.Parent != "" && s.state.Cold.Spilled()
}

// Get is Store.Get, verified, of the first of keys, and a lease of all of them, the last one
// first. Nil: the block is not in this rank's fastest memory, has more than most bytes or
// none that the process can address, or they are bad. Nothing is counted as missed then.
func (h Here) Get(ns string, keys []string, most int64, owner string, d time.Duration) *View {
	if inject.Armed(inject.Lookup) || inject.Armed(inject.Pin) {
		return nil
	}
	v := h.pin(ns, keys, most, owner, d)
	if v != nil && !v.Verify(block.CRC(v.Bytes())) {
		v.Release()
		return nil
	}
	return v
}

func (h Here) pin(ns string, keys []string, most int64, owner string, d time.Duration) *View {
	s := h.state
	s.Mu.Lock()
	defer s.Mu.Unlock()
	n := residency.VisibleLocked(s, ns, keys[0])
	if n == nil || s.CheckOpenLocked() != nil {
		return nil
	}
	b, m := residency.BlockOf(n), s.Mem[0]
	if b.Info.Size > most || m.Memory.Region() == nil {
		return nil
	}
	v := s.PinLocked(b, m)
	if v == nil {
		return nil
	}
	s.Requests.UsedLocked(b)
	if left := s.Requests.BeginLocked(); !s.Requests.LookedLocked(ns, keys[0], &left) {
		s.Requests.AddLocked(b)
		s.Requests.PassLocked(true)
	}
	s.Count.GotLocked(ns, v)
	for _, key := range slices.Backward(keys) {
		if n := residency.VisibleLocked(s, ns, key); n != nil && d > 0 {
			s.Leases.RenewLocked(n, owner, d)
		}
	}
	return v
}
