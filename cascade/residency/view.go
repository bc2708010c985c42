package residency

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"cascadekv/tiers"
)

// View is a block pinned for reading. Release it exactly once; until then the
// bytes neither move nor change. It belongs to one goroutine at a time.
type View struct {
	state *State
	pin   tiers.Pin  // nil when the bytes are private, but for those of a claim
	bytes []byte     // nil: the process can not address them
	free  func()     // of private bytes
	slot  tiers.Slot // the private bytes are in the arena; nil otherwise
	block *Block
	level *Level // nil when the bytes are private
	stay  uint32 // the residence that is held
	id    BlockID
	from  *Level // that served the hit
	done  bool

	checked bool // the bytes were compared with the checksum
	unasked bool // made by a background worker: no request
	kept    bool // held for long: no request under way any more
}

// Bytes is the block in place, or a copy where the process can not address it:
// read-only, dead after Release. A view that was not checked may have none.
func (v *View) Bytes() []byte { return v.bytes }

// Size is the block's length in bytes.
func (v *View) Size() int64 { return v.block.Info.Size }

// ID is the block's id at the time of the get; provisional if it was not
// finalized then.
func (v *View) ID() BlockID { return v.id }

// CRC is the CRC32C that was stored with the block.
func (v *View) CRC() uint32 { return v.block.Info.CRC }

// Tier names the tier that served the hit.
func (v *View) Tier() string { return v.from.Stats.Name }

// From is the level that served the hit.
func (v *View) From() *Level { return v.from }

// File returns the descriptor and offset of Bytes for sendfile; false when the
// bytes are not in a file.
func (v *View) File() (fd int, offset int64, ok bool) {
	switch {
	case v.level != nil:
		return FileOf(v.level, v.pin)
	case v.slot != nil:
		return FileOf(v.state.Shared(), v.slot)
	case v.pin != nil:
		return FileOf(v.state.Shared(), v.pin)
	}
	return -1, 0, false
}

// ZeroCopy reports whether sockets and pipes may refer to Bytes, even after Release:
// what they refer to is never written again: slots in its place get other memory. It
// must not be used where a device or a network adapter has the arena's memory by its
// address.
func (v *View) ZeroCopy() bool {
	return v.pin != nil && v.pin.ZeroCopy()
}

// Release gives the block back. Calls after the first do nothing.
func (v *View) Release() {
	if v.done {
		return
	}
	v.done = true
	s := v.state
	if v.pin != nil {
		v.pin.Release()
	}
	if v.free != nil {
		v.free()
	}
	s.Mu.Lock()
	s.unviewLocked(v)
	s.Mu.Unlock()
	if v.kept {
		s.Activity.kept.Add(-1)
	} else if !v.unasked {
		s.Activity.End()
	}
}

// Background marks a new view as a background worker's: it must not keep the
// finalizer waiting for quiet.
func (v *View) Background() *View {
	v.unasked = true
	v.state.Activity.active.Add(-1)
	return v
}

// unviewLocked undoes what pinning did to the index.
func (s *State) unviewLocked(v *View) {
	s.Count.Stats.Views--
	b := v.block
	if v.level != nil && b.At[v.level.Index].stay == v.stay {
		s.ReleaseLocked(b, v.level.Index)
	}
	b.Busy--
	s.ForgetLocked(b)
	s.WakeWaitersLocked()
}

// PinInLocked returns a view of b in memory tier m, where it is.
func (s *State) PinInLocked(b *Block, m, servedBy *Level) (*View, error) {
	s.Mu.AssertHeld()
	p, err := m.Memory.Pin(b.Info.ID)
	if err != nil {
		return nil, err
	}
	s.HoldLocked(b, m.Index)
	b.Busy++
	s.Count.Stats.Views++
	s.Activity.Begin()
	return &View{state: s, pin: p, bytes: p.Bytes(), block: b, level: m, stay: b.At[m.Index].stay, id: b.Info.ID, from: servedBy}, nil
}

// PrivateViewLocked returns a view of b in memory that is in no tier of blocks,
// and that free gives back: in slot, or nowhere in the arena when that is nil.
func (s *State) PrivateViewLocked(b *Block, id BlockID, servedBy *Level, bytes []byte, slot tiers.Slot, free func()) *View {
	s.Mu.AssertHeld()
	b.Busy++
	s.Count.Stats.Views++
	s.Activity.Begin()
	return &View{state: s, bytes: bytes, free: free, slot: slot, block: b, id: id, from: servedBy}
}

// Pin is the hold on the block in the tier that it lies in; nil of private bytes.
func (v *View) Pin() tiers.Pin { return v.pin }

// Block is the block's record.
func (v *View) Block() *Block { return v.block }

// Resident reports whether Bytes lie in a memory tier as a block of it.
func (v *View) Resident() bool { return v.level != nil }

// In returns the memory tier that the view holds the block in; nil when its bytes are private.
func (v *View) In() *Level { return v.level }

// ServedBy sets what Tier returns, to the name of a level.
func (v *View) ServedBy(tier string) {
	for _, m := range slices.Concat(v.state.Levels, []*Level{v.state.Remote}) {
		if m.Stats.Name == tier {
			v.from = m
		}
	}
}

// SetChecked records whether the bytes were compared with the checksum.
func (v *View) SetChecked(yes bool) { v.checked = yes }

// Verify compares the CRC32C of the bytes, as the caller computed it, with
// what was stored. A block that fails must not be used, and is withdrawn if it is one
// of a memory tier. The view must still be released. Options.SkipVerify accepts everything.
func (v *View) Verify(crc uint32) bool {
	s := v.state
	if s.SkipVerify || crc == v.CRC() {
		return true
	}
	if v.level != nil {
		s.Mu.Lock()
		defer s.Mu.Unlock()
		v.WithdrawLocked()
	}
	return false
}

// WithdrawLocked takes a block whose bytes are bad out of the tier, unless that
// was done already.
func (v *View) WithdrawLocked() {
	if v.block.At[v.level.Index].stay == v.stay {
		v.state.LogLocked(slog.LevelError, "block fails its checksum and is withdrawn", "tier", v.level.Stats.Name, "block", v.block.Info.ID)
		v.state.corruptLocked(v.block, v.level)
	}
}

// PinFastestLocked pins b in the fastest memory tier that has it, or returns
// nil.
func (s *State) PinFastestLocked(b *Block) *View {
	s.Mu.AssertHeld()
	for _, m := range s.Mem {
		if v := s.PinLocked(b, m); v != nil {
			return v
		}
	}
	return nil
}

// PinLocked pins b in m, or returns nil when it is not there.
func (s *State) PinLocked(b *Block, m *Level) *View {
	s.Mu.AssertHeld()
	if !b.In(m.Index) {
		return nil
	}
	v, err := s.PinInLocked(b, m, m)
	if err != nil {
		s.NoteLocked(m, err)
		return nil
	}
	return v
}

// FastestLocked is the fastest level that has b, which is in some.
func (s *State) FastestLocked(b *Block) *Level {
	s.Mu.AssertHeld()
	for _, m := range s.Mem {
		if b.In(m.Index) {
			return m
		}
	}
	return cmp.Or(s.Cold, s.Remote)
}

// ContainsHere reports whether a name is visible on this rank; see VisibleLocked.
func (s *State) ContainsHere(ns, key string) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return VisibleLocked(s, ns, key) != nil
}

// RoomError turns a tier's refusal into the store's words.
func (s *State) RoomError(m *Level, size int64, err error) error {
	switch {
	case errors.Is(err, tiers.ErrTooLarge):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, tiers.ErrClosed):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	default:
		return fmt.Errorf("%w: %d bytes in tier %s: %w", ErrNoRoom, size, m.Stats.Name, err)
	}
}

// ClaimedViewLocked is a view of a block that the tier still has, or of bytes
// that are nothing else any more.
func (s *State) ClaimedViewLocked(p tiers.Pin, m *Level) *View {
	s.Mu.AssertHeld()
	info := p.Info()
	v := &View{state: s, pin: p, bytes: p.Bytes(), id: info.ID, from: m, kept: true}
	if b := s.Mu.Blocks[info.ID]; !info.ID.IsZero() && b != nil && b.In(m.Index) {
		s.HoldLocked(b, m.Index)
		v.block, v.level, v.stay = b, m, b.At[m.Index].stay
	} else {
		v.block = NewBlock(info)
	}
	v.block.Busy++
	s.Count.Stats.Views++
	s.Activity.kept.Add(1)
	return v
}

// Shared is the fastest memory tier that lies in a file, nil for none.
func (s *State) Shared() *Level {
	for _, m := range s.Mem {
		if m.Memory.File() >= 0 {
			return m
		}
	}
	return nil
}

// Keep marks a view as held for as long as a client likes: the store does
// not put off for it what it puts off for requests under way.
func (v *View) Keep() {
	if v.kept || v.done {
		return
	}
	v.kept = true
	v.state.Activity.kept.Add(1)
	v.state.Activity.End()
}

// SameBlock reports whether v and w are views of one block in one place.
func (v *View) SameBlock(w *View) bool {
	return v.block == w.block && v.level == w.level && v.stay == w.stay
}

// FileOf returns the descriptor and offset of what is located in m.
func FileOf(m *Level, at interface{ Offset() int64 }) (fd int, offset int64, ok bool) {
	if fd = m.Memory.File(); fd < 0 {
		return -1, 0, false
	}
	return fd, at.Offset(), true
}

// DropPrivate gives back views that are in no memory tier, and lists their keys
// and places.
func DropPrivate(keys []string, views []*View) (dropped []string, at []int) {
	for i, v := range views {
		if v != nil && !v.Resident() {
			v.Release()
			views[i], dropped, at = nil, append(dropped, keys[i]), append(at, i)
		}
	}
	return dropped, at
}
