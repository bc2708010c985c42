package cascade

import (
	"log/slog"

	"cascadekv/tiers"
)

// View is a block pinned for reading. Release it exactly once; until then the
// bytes neither move nor change. It belongs to one goroutine at a time.
type View struct {
	store *Store
	pin   tiers.Pin // nil when the bytes are private, but for those of a claim
	bytes []byte
	free  func()     // of private bytes
	slot  tiers.Slot // the private bytes are in the arena; nil otherwise
	block *blockState
	mem   *memTier // nil when the bytes are private
	stay  uint64   // the residence that is held
	id    BlockID
	tier  string
	done  bool

	checked bool // the bytes were compared with the checksum
	unasked bool // made by a background worker: no request
	kept    bool // held for long: no request under way any more
}

// Bytes is the block in place: read-only, dead after Release.
func (v *View) Bytes() []byte { return v.bytes }

// Size is the block's length in bytes.
func (v *View) Size() int64 { return int64(len(v.bytes)) }

// ID is the block's id at the time of the get; provisional if it was not
// completed then.
func (v *View) ID() BlockID { return v.id }

// CRC is the CRC32C that was stored with the block.
func (v *View) CRC() uint32 { return v.block.Info.CRC }

// Tier names the tier that served the hit.
func (v *View) Tier() string { return v.tier }

// File returns the descriptor and offset of Bytes for sendfile; false when the
// bytes are not in a file.
func (v *View) File() (fd int, offset int64, ok bool) {
	switch {
	case v.mem != nil:
		return fileOf(v.mem, v.pin)
	case v.slot != nil:
		return fileOf(v.store.shared(), v.slot)
	case v.pin != nil:
		return fileOf(v.store.shared(), v.pin)
	}
	return -1, 0, false
}

// ZeroCopy reports whether sockets and pipes may refer to Bytes, even after Release:
// what they refer to is never written again. Who gives the arena's memory to a
// device or a network adapter, which know it by its address, must not lend:
// rooms of what was lent get other memory.
func (v *View) ZeroCopy() bool {
	return v.pin != nil && v.pin.ZeroCopy()
}

// Release gives the block back. Calls after the first do nothing.
func (v *View) Release() {
	if v.done {
		return
	}
	v.done = true
	s := v.store
	if v.pin != nil {
		v.pin.Release()
	}
	if v.free != nil {
		v.free()
	}
	s.mu.Lock()
	s.unviewLocked(v)
	s.mu.Unlock()
	if v.kept {
		s.kept.Add(-1)
	} else if !v.unasked {
		s.end()
	}
}

// background marks a new view as a background worker's: it must not keep the
// finalizer waiting for quiet.
func (v *View) background() *View {
	v.unasked = true
	v.store.active.Add(-1)
	return v
}

// unviewLocked undoes what pinning did to the index.
func (s *Store) unviewLocked(v *View) {
	s.mu.stats.Views--
	b := v.block
	if v.mem != nil && b.at[v.mem.index].stay == v.stay {
		s.releaseLocked(b, v.mem.index)
	}
	b.busy--
	s.forgetLocked(b)
	s.wakeWaitersLocked()
}

// pinInLocked returns a view of b in memory tier m, where it is.
func (s *Store) pinInLocked(b *blockState, m *memTier, servedBy string) (*View, error) {
	p, err := m.tier.Pin(b.Info.ID)
	if err != nil {
		return nil, err
	}
	s.holdLocked(b, m.index)
	b.busy++
	s.mu.stats.Views++
	s.begin()
	return &View{store: s, pin: p, bytes: p.Bytes(), block: b, mem: m, stay: b.at[m.index].stay, id: b.Info.ID, tier: servedBy}, nil
}

// Verify compares the CRC32C of the bytes, as the caller computed it, with
// what was stored. A block that fails is withdrawn: it must not be used. The
// view must still be released. Options.SkipVerify accepts everything.
func (v *View) Verify(crc uint32) bool {
	s := v.store
	if v.mem == nil || !s.verify || crc == v.pin.Info().CRC {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v.withdrawLocked()
	return false
}

// withdrawLocked takes a block whose bytes are bad out of the tier, unless that
// was done already.
func (v *View) withdrawLocked() {
	if v.block.at[v.mem.index].stay == v.stay {
		v.store.logLocked(slog.LevelError, "block fails its checksum and is withdrawn", "tier", v.mem.stats.Name, "block", v.block.Info.ID)
		v.store.corruptLocked(v.block, v.mem)
	}
}
