package eviction

import (
	"cascadekv/cascade/residency"
)

// Evictor makes room in memory tiers. It is safe for concurrent use.
type Evictor struct {
	state *residency.State

	// Identify gives a viewed block its id, if it has none, before it is copied to Ladder.Deep: what lies
	// there is not hashed, and may outlive the process. Nil: all have theirs.
	Identify func(*residency.View)
}

// New returns the evictor of a rank.
func New(s *residency.State) *Evictor { return &Evictor{state: s} }

// NameBudget keeps the heap that names take within a bound.
type NameBudget struct{ state *residency.State }

// NewNameBudget returns the budget of a rank.
func NewNameBudget(s *residency.State) *NameBudget { return &NameBudget{s} }
