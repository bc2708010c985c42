package residency

import (
	"cascadekv/cascade/names"
)

// LeaseBudget is how many bytes leases may hold in the last memory tier.
func (s *State) LeaseBudget() int64 {
	return int64(float64(s.Last().Tier.Usage().Capacity) * s.Limits.Load().LeaseShare)
}

// HoldLeasesOfLocked keeps a leased block in the last memory tier, if that is the
// only way to keep it. Leases beyond the budget end early, first to end first.
func (s *State) HoldLeasesOfLocked(n *names.Name) {
	if n.Leased() && !s.ColdUpLocked() {
		s.Mu.Names.HoldLeases(n, s.LeaseBudget())
		s.ApplyLocked()
	}
}

// HoldLeasesLocked is HoldLeasesOfLocked for all names of a block.
func (s *State) HoldLeasesLocked(b *Block) {
	if !b.Leased() {
		return
	}
	for _, n := range b.Names() {
		s.HoldLeasesOfLocked(n)
	}
}
