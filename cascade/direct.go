package cascade

import (
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Direct is what is asked of a store by who writes blocks to Ladder.Deep by itself, straight from memory of a client. Each block that
// Begin takes ends with Stage or Return.
type Direct struct{ Store *Store }

// Begin reports whether the level takes a block of so many bytes under e, and counts it in the level's budget. Not one whose name is
// visible with that size already, unless it is to be replaced.
func (d Direct) Begin(e Entry, size int64, replace bool) bool {
	s := d.Store
	if e.Check() != nil || !replace && s.state.StoredAs(e.Namespace, e.Key, size) != nil {
		return false
	}
	b := residency.NewBlock(block.Info{Size: size})
	b.Fingerprint = block.Fingerprint(e.Namespace, e.Key)
	s.state.Mu.Lock()
	meta := s.metaOfEntryLocked(&e, b)
	s.state.Mu.Unlock()
	return s.evict.BeginDirect(meta)
}

// Return gives back the budget of a block that was not written, and Pause has the level be left alone, after a write that did not end.
func (d Direct) Return(size int64) { d.Store.evict.ReturnDirect(size) }

// Pause is described with Return.
func (d Direct) Pause() { d.Store.evict.PauseDirect() }

// IDBits is how many bits the ids of blocks have.
func (d Direct) IDBits() int { return d.Store.state.IDBits }

// Stage returns a stage of a block that is written, for PutBatchFunc: its slot is one of the level's, which has the bytes that info is of.
func (d Direct) Stage(slot tiers.Slot, info block.Info) *Stage {
	s := d.Store
	s.state.Activity.Begin()
	return &Stage{store: s, mem: s.state.Deep(), slot: slot, size: info.Size, filled: info.Size, crc: info.CRC, id: info.ID}
}
