package cascade

import (
	"context"
	"errors"

	"cascadekv/internal/block"
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
	slot, err := s.reserve(ctx, m, v.Size(), copyOnly)
	if err != nil {
		return nil, err
	}
	copy(slot.Bytes(), v.bytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	v.block.busy++
	s.mu.stats.Views++
	s.begin()
	return &View{store: s, bytes: slot.Bytes(), free: slot.Abort, slot: slot, block: v.block, id: v.id, tier: v.tier}, nil
}

// pinShared pins b in m, or returns nil when it is not there.
func (s *Store) pinShared(b *blockState, m *memTier) *View {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !b.In(m.index) {
		return nil
	}
	v, err := s.pinInLocked(b, m, m.stats.Name)
	if err != nil {
		s.noteLocked(m, err)
		return nil
	}
	return v
}

// GetResident gets blocks that are to stay in memory on this rank: those that
// only others have are copied here. Misses are nil, and what finds no place in
// memory is a miss. Bytes are not checked. The error is ErrClosed or nil.
func (s *Store) GetResident(ctx context.Context, ns string, keys []string) ([]*View, error) {
	how := getting{keep: true}
	views, err := s.get(ctx, ns, keys, how)
	if err != nil {
		return nil, err
	}
	again, at := dropPrivate(keys, views) // of fetches that were begun without a place
	if len(again) == 0 {
		return views, nil
	}
	more, err := s.get(ctx, ns, again, how)
	if err != nil {
		return views, nil // closed meanwhile: these are misses
	}
	dropPrivate(again, more)
	for j, v := range more {
		views[at[j]] = v
	}
	return views, nil
}

// dropPrivate gives back views that are in no memory tier, and lists their keys
// and places.
func dropPrivate(keys []string, views []*View) (dropped []string, at []int) {
	for i, v := range views {
		if v != nil && v.mem == nil {
			v.Release()
			views[i], dropped, at = nil, append(dropped, keys[i]), append(at, i)
		}
	}
	return dropped, at
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

// SameBlock tells whether v and w are views of one block in one place.
func (v *View) SameBlock(w *View) bool {
	return v.block == w.block && v.mem == w.mem && v.stay == w.stay
}

// File returns the descriptor and offset of Bytes; false when the room is not in
// a file.
func (st *Stage) File() (fd int, offset int64, ok bool) { return fileOf(st.mem, st.slot) }

// fileOf returns the descriptor and offset of what is located in m.
func fileOf(m *memTier, at interface{ Offset() int64 }) (fd int, offset int64, ok bool) {
	if fd = m.tier.File(); fd < 0 {
		return -1, 0, false
	}
	return fd, at.Offset(), true
}
