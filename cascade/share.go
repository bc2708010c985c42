package cascade

import (
	"context"
	"errors"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// ErrNoArena means that no memory tier of the store lies in a file that other
// processes can map. Permanent.
var ErrNoArena = errors.New("cascade: no memory tier lies in a file; configure shm.bytes")

// Arena is the file in which the blocks of a memory tier lie.
type Arena struct {
	FD       int   // the store's: not to be closed, and dead after Close
	Size     int64 // of the file, in bytes
	Capacity int64 // bytes of it that can hold blocks
}

// Arena returns the file that views and stages of other processes lie in; false
// when there is none.
func (s *Store) Arena() (Arena, bool) {
	m := s.shared()
	if m == nil {
		return Arena{}, false
	}
	return Arena{FD: m.tier.File(), Size: int64(len(m.tier.Region())), Capacity: m.tier.Usage().Capacity}, true
}

// shared is the fastest memory tier that lies in a file, nil for none.
func (s *Store) shared() *memTier {
	for _, m := range s.mem {
		if m.tier.File() >= 0 {
			return m
		}
	}
	return nil
}

// Share returns a view of the same block whose bytes are in the arena: v itself,
// one of the block's copy there, or one of a copy that is made for it and lasts
// as long as the view. v is used up, whatever the outcome.
// Errors: ErrNoArena, ErrNoRoom, ErrTooLarge, ErrClosed.
func (s *Store) Share(ctx context.Context, v *View) (*View, error) {
	m := s.shared()
	if m != nil && v.mem == m {
		return v, nil
	}
	defer v.Release()
	if m == nil {
		return nil, ErrNoArena
	}
	if w := s.pinShared(v.block, m); w != nil {
		if w.Verify(block.CRC(w.bytes)) {
			return w, nil
		}
		w.Release()
	}
	slot, err := s.reserve(ctx, m, v.Size())
	if err != nil {
		return nil, err
	}
	copy(slot.Bytes(), v.bytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	v.block.busy++
	s.stats.Views++
	s.begin()
	return &View{store: s, bytes: slot.Bytes(), free: slot.Abort, slot: slot, block: v.block, id: v.id, tier: v.tier}, nil
}

// pinShared pins b in m, or returns nil when it is not there.
func (s *Store) pinShared(b *entity, m *memTier) *View {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !b.at[m.index].present {
		return nil
	}
	v, err := s.pinIn(b, m, m.stats.Name)
	if err != nil {
		s.note(m, err)
		return nil
	}
	return v
}

// bringTries is how often a block is got until it has a place in memory: the
// first get may share a fetch that was begun without one.
const bringTries = 2

// GetResident is Get of a block that is to stay in memory on this rank: one that
// only others have is copied here. The error matches ErrMiss where that can not
// be.
func (s *Store) GetResident(ctx context.Context, ns, key string) (*View, error) {
	for range bringTries {
		views, err := s.get(ctx, ns, []string{key}, getting{verify: s.verify, keep: true})
		switch v := views[0]; {
		case err != nil:
			return nil, err
		case v == nil:
			return nil, ErrMiss
		case v.mem != nil:
			return v, nil
		default:
			v.Release()
		}
	}
	return nil, ErrMiss
}

// StageShared is Stage in the arena. Errors: ErrNoArena, those of Stage.
func (s *Store) StageShared(ctx context.Context, size int64) (*Stage, error) {
	m := s.shared()
	if m == nil {
		return nil, ErrNoArena
	}
	return s.stageIn(ctx, size, m)
}

// Keep tells that a view is held for as long as a client likes: the store does
// not put off for it what it puts off for requests under way.
func (v *View) Keep() {
	if v.kept || v.done {
		return
	}
	v.kept = true
	v.store.kept.Add(1)
	v.store.end()
}

// Keep tells that a stage is held for as long as a client likes; as View.Keep.
func (st *Stage) Keep() {
	if st.kept || st.done {
		return
	}
	st.kept = true
	st.store.end()
}

// File returns the descriptor and offset of Bytes; false when the room is not in
// a file.
func (st *Stage) File() (fd int, offset int64, ok bool) { return fileOf(st.mem, st.slot) }

// fileOf returns the descriptor and offset of what is located in m.
func fileOf(m *memTier, at any) (fd int, offset int64, ok bool) {
	l, ok := at.(tiers.Located)
	fd = m.tier.File()
	if !ok || fd < 0 {
		return -1, 0, false
	}
	return fd, l.Offset(), true
}
