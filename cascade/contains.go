package cascade

import (
	"context"

	"cascadekv/cascade/residency"
)

// ContainsBatch is Contains for many keys, in parallel to them; what is not here
// is asked for elsewhere in one batch. The keys are only read.
func (s *Store) ContainsBatch(ctx context.Context, ns string, keys [][]byte) []bool {
	found := make([]bool, len(keys))
	if s.here.unanswered(ctx, len(keys)) {
		return found
	}
	missing := 0
	for at := 0; at < len(keys); at += residency.LookStep {
		end := min(at+residency.LookStep, len(keys))
		missing += s.here.lookMany(ns, keys[at:end], found[at:end])
	}
	if missing > 0 && s.others.AsksElsewhere() {
		ask, places := make([]string, 0, missing), make([]int, 0, missing)
		for i, here := range found {
			if !here {
				ask, places = append(ask, string(keys[i])), append(places, i)
			}
		}
		for j, copies := range s.others.Located(ctx, ns, ask) {
			if copies != nil {
				found[places[j]] = true
				missing--
			}
		}
	}
	s.state.Count.Lookups(ns, len(keys), len(keys)-missing)
	missed(s.state, ns, keys, found, missing)
	return found
}

// missed notes which of some keys that were looked for are not there, so many.
func missed(s *residency.State, ns string, keys [][]byte, found []bool, missing int) {
	if missing < 2 {
		return // that says nothing of how fast they are computed
	}
	are := make([][]byte, 0, missing)
	for i, is := range found {
		if !is {
			are = append(are, keys[i])
		}
	}
	residency.Missed(s, ns, are)
}
