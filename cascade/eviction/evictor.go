package eviction

import (
	"cascadekv/cascade/residency"
)

// Evictor makes room in memory tiers. It is safe for concurrent use.
type Evictor struct{ state *residency.State }

// New returns the evictor of a rank.
func New(s *residency.State) *Evictor { return &Evictor{s} }

// NameBudget keeps the heap that names take within a bound.
type NameBudget struct{ state *residency.State }

// NewNameBudget returns the budget of a rank.
func NewNameBudget(s *residency.State) *NameBudget { return &NameBudget{s} }
