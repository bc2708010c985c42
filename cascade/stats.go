package cascade

// coldStatsNowLocked is the cold tier's part of Stats.
func (s *Store) coldStatsNowLocked() TierStats {
	st := s.state.Cold.Stats
	st.Usage, st.Load, st.Budget = s.state.Cold.Files.Usage(), s.state.Cold.LoadStats(), s.state.Cold.BudgetStats()
	if budget := s.state.Limits.Load().ColdBytes; budget > 0 {
		st.Usage.Capacity = budget
	}
	st.Stats = s.state.Cold.Files.Stats()
	return st
}
