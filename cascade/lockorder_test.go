//go:build invariants

package cascade

import (
	"strings"
	"testing"

	"cascadekv/cascade/residency"
)

// TestLockOrderIsAsserted: what must not be done with State.Mu held, and what only
// with it, panics.
func TestLockOrderIsAsserted(t *testing.T) {
	r := newRig(t, 8<<20, true)
	r.put(ns("a"), data(1, 100))
	for _, c := range []struct {
		what, why string
		held      bool
		do        func()
	}{
		{"statistics", "is held already", true, func() { r.Stats() }},
		{"the token to write", "Writing is taken while State is held", true, func() { _ = r.write.SyncInTurn(t.Context()) }},
		{"a slot", "is taken while State is held", true, func() { _ = residency.TakeSlot(t.Context(), make(chan struct{}, 1)) }},
		{"what is published", "is held already", true, func() { r.others.AwaitHomes(t.Context()) }},
		{"a look-up", "State is not held", false, func() { r.state.LookupLocked("ns", "a") }},
		{"the shared index", "State is not held", false, func() { r.index.SweepIndexLocked() }},
		{"an invalidation", "State is not held", false, func() { r.others.InvalidateLocked(residency.NameID{}, 1) }},
		{"room for a name", "State is not held", false, func() { _ = r.nameRoom.MakeRoomLocked("ns", "b") }},
		{"what was prefetched", "State is not held", false, func() { r.load.SweepLandedLocked(r.state.Now(), true) }},
		{"a full tier", "State is not held", false, func() { r.space.NoteFullLocked() }},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.held {
				r.state.Mu.Lock()
				defer r.state.Mu.Unlock()
			}
			defer func() {
				if text, ok := recover().(string); !ok || !strings.Contains(text, c.why) {
					t.Errorf("%q, want a panic with %q", text, c.why)
				}
			}()
			c.do()
		})
	}
}
