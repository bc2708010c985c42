package coldspace

import (
	"context"
	"sync"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/load"
	"cascadekv/cascade/others"
	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Space decides what the cold tier keeps of this rank. It is safe for concurrent
// use. Without a cold tier it does nothing.
type Space struct {
	state    *residency.State
	nameRoom *eviction.NameBudget
	others   *others.Exchange
	load     *load.Loader
	shared   Shared
	mergeNow chan struct{} // has the cold tier merge before the next tick
	merging  sync.Mutex    // of MergeAll

	guarded struct { // by State.Mu
		Orphans  Orphans
		LowSpace policy.LowSpace
		Spilled  []tiers.SpilledFile // as of the last look, the oldest first
		merged   tiers.Merged        // what the budgets have of merges
	}
}

// Shared is what other ranks rely on this one for, and what they keep too.
type Shared interface {
	// Seconds returns blocks that another rank keeps too and that the state does not know
	// to be in this rank's files.
	Seconds() []block.ID

	// ForgetSeconds forgets blocks that are in none.
	ForgetSeconds([]block.ID)

	// GiveUpSeconds takes out of the cold tier what another rank keeps too.
	GiveUpSeconds(ctx context.Context)

	// MovedLocked states where a block lies now.
	MovedLocked(*residency.Block)
}

// New returns the space of a rank.
func New(s *residency.State, n *eviction.NameBudget, x *others.Exchange, l *load.Loader, shared Shared) *Space {
	return &Space{state: s, nameRoom: n, others: x, load: l, shared: shared, mergeNow: make(chan struct{}, 1)}
}

// AcceptedLocked records that the cold tier took blocks.
func (cs *Space) AcceptedLocked() {
	cs.state.Mu.AssertHeld()
	if cs.guarded.LowSpace.Limit() > 0 { // what the tier takes is known by looking at all its files
		cs.guarded.LowSpace.Accept(cs.state.Now(), cs.usedBelow())
	}
}
