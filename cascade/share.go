package cascade

import (
	"context"
	"fmt"
	"time"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/residency"
)

// Arena is the file in which the blocks of a memory tier lie.
type Arena struct {
	FD       int   // the store's: not to be closed, and dead after Close
	Size     int64 // of the file, in bytes
	Capacity int64 // bytes of it that can hold blocks
}

// Arena returns the file that views and stages of other processes lie in; false
// when there is none.
func (s *Store) Arena() (Arena, bool) {
	m := s.state.Shared()
	if m == nil {
		return Arena{}, false
	}
	return Arena{FD: m.Memory.File(), Size: int64(len(m.Memory.Region())), Capacity: m.Memory.Usage().Capacity}, true
}

// Share returns a view of the same block whose bytes are in the arena: v itself,
// one of the block's copy there, or one of a copy that is made for it and lasts
// as long as the view. v is used up, whatever the outcome.
// Errors: ErrNoArena, ErrNoRoom, ErrTooLarge, ErrClosed, ErrMiss (its bytes are bad).
func (s *Store) Share(ctx context.Context, v *View) (_ *View, err error) {
	m := s.state.Shared()
	if m != nil && v.In() == m {
		return v, nil
	}
	defer func() { residency.AfterIO(err, v.Release) }()
	if m == nil {
		return nil, ErrNoArena
	}
	s.state.Mu.Lock()
	w := s.state.PinLocked(v.Block(), m)
	s.state.Mu.Unlock()
	if w != nil {
		if w.Check(ctx, true) {
			return w, nil
		}
		w.Release()
	}
	slot, err := s.evict.Reserve(ctx, m, v.Size(), eviction.CopyOnly)
	if err != nil {
		return nil, err
	}
	if err := v.CopyTo(ctx, slot); err != nil {
		residency.AfterIO(err, slot.Abort)
		return nil, fmt.Errorf("%w: %w", ErrMiss, err)
	}
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	return s.state.PrivateViewLocked(v.Block(), v.ID(), v.From(), slot.Bytes(), slot, slot.Abort), nil
}

// getResident is GetBatch with Resident.
func (s *Store) getResident(ctx context.Context, ns string, keys []string) ([]*View, error) {
	joined := false
	how := getting{price: eviction.CopyOnly, joined: &joined}
	within, cancel := context.WithTimeout(ctx, s.state.Limits.Load().RoomDeadline)
	defer cancel()
	views, err := s.get(ctx, ns, keys, how)
	if err != nil {
		return nil, err
	}
	// What others began to fetch, who can do without a place, has none; the next fetch may be this request's.
	for wait := time.Duration(0); ; wait = 2*wait + time.Millisecond {
		again, at := residency.DropPrivate(keys, views)
		if len(again) == 0 || wait > 0 && !joined || residency.Sleep(within, wait) != nil {
			return views, nil
		}
		joined, how.uncounted = false, true
		more, err := s.get(within, ns, again, how)
		if err != nil {
			return views, nil // closed meanwhile: these are misses
		}
		for j, v := range more {
			views[at[j]] = v
		}
	}
}

// Keep marks a stage as held for as long as a client likes; as View.Keep.
func (st *Stage) Keep() {
	if st.kept || st.done {
		return
	}
	st.kept = true
	st.store.state.Activity.End()
}

// File returns the descriptor and offset of Bytes; false when the room is not in
// a file.
func (st *Stage) File() (fd int, offset int64, ok bool) { return residency.FileOf(st.mem, st.slot) }
