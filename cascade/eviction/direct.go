package eviction

import (
	"cascadekv/cascade/policy"
	"cascadekv/tiers"
)

// Blocks that somebody else writes to the deep level, straight from memory of a client.

// AdmitsDirect reports whether the deep level takes a block that is to be written there by somebody else, who has waiting bytes to write
// before it.
func (e *Evictor) AdmitsDirect(m policy.Meta, waiting int64) bool {
	e.state.Mu.Lock()
	defer e.state.Mu.Unlock()
	d := e.state.Deep()
	return e.state.DeepUpLocked() && e.state.CheckOpenLocked() == nil && d.MayWriteLocked() > waiting && d.Policy.Admit(e.state.Clock(), m)
}

// CountDirect counts bytes that somebody else writes in the budget of the deep level, or gives back those that were not written, as less than 0.
func (e *Evictor) CountDirect(bytes int64) {
	if flow := &e.state.Deep().Writes; bytes > 0 {
		flow.Take(bytes)
	} else {
		flow.Return(-bytes)
	}
}

// PauseDirect has the deep level be left alone with writes for a while: one of somebody else did not end, or its end did not become durable.
func (e *Evictor) PauseDirect() { _ = e.pause(e.state.Deep(), tiers.ErrUnavailable) }
