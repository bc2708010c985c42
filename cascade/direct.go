package cascade

import (
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Direct is what is asked of a store by who writes blocks to Ladder.Deep by itself, straight from memory of a client. Of what Admits
// has taken and is being written, Count counts the bytes; each block that is written ends with Stage.
type Direct struct{ Store *Store }

// Admits reports whether the level takes a block of so many bytes under e, beside waiting bytes that the same client is to write before. Not one whose name is
// visible with that size already, unless it is to be replaced.
func (d Direct) Admits(e Entry, size int64, replace bool, waiting int64) bool {
	s := d.Store
	if e.Check() != nil || !replace && s.state.StoredAs(e.Namespace, e.Key, size) != nil {
		return false
	}
	b := residency.NewBlock(block.Info{Size: size})
	b.Fingerprint = block.Fingerprint(e.Namespace, e.Key)
	s.state.Mu.Lock()
	meta := s.metaOfEntryLocked(&e, b)
	s.state.Mu.Unlock()
	return s.evict.AdmitsDirect(meta, waiting)
}

// Count counts bytes that are written in the budget of the level, and gives back those of blocks that were not, as less than 0. Pause has the
// level be left alone, after a write that did not end.
func (d Direct) Count(bytes int64) { d.Store.evict.CountDirect(bytes) }

// Pause is described with Count.
func (d Direct) Pause() { d.Store.evict.PauseDirect() }

// IDBits is how many bits the ids of blocks have.
func (d Direct) IDBits() int { return d.Store.state.IDBits }

// Stage returns a stage of a block that is written, for PutBatchFunc: its slot is one of the level's, which has the bytes that info is of.
func (d Direct) Stage(slot tiers.Slot, info block.Info) *Stage {
	s := d.Store
	s.state.Activity.Begin()
	return &Stage{store: s, mem: s.state.Deep(), slot: slot, size: info.Size, filled: info.Size, crc: info.CRC, id: info.ID}
}
