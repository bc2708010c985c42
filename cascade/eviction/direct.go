package eviction

import (
	"cascadekv/cascade/policy"
	"cascadekv/tiers"
)

// Blocks that somebody else writes to the deep level, straight from memory of a client.

// BeginDirect reports whether the deep level takes a block that is written there by somebody else, and counts it in the budget of
// that level if so. ReturnDirect undoes that for a block that is not written.
func (e *Evictor) BeginDirect(m policy.Meta) bool {
	e.state.Mu.Lock()
	defer e.state.Mu.Unlock()
	d := e.state.Deep()
	if !e.state.DeepUpLocked() || e.state.CheckOpenLocked() != nil || d.MayWriteLocked() <= 0 || !d.Policy.Admit(e.state.Clock(), m) {
		return false
	}
	d.Writes.Take(m.Size)
	return true
}

// ReturnDirect gives back the part of the budget of a block that was not written.
func (e *Evictor) ReturnDirect(size int64) { e.state.Deep().Writes.Return(size) }

// PauseDirect has the deep level be left alone with writes for a while: one of somebody else did not end, or its end did not become durable.
func (e *Evictor) PauseDirect() { _ = e.pause(e.state.Deep(), tiers.ErrUnavailable) }
