package cascade

import (
	"context"
	"slices"

	"cascadekv/cascade/load"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

// ContainsBatch is Contains for many keys, in parallel to them; what is not here
// is asked for elsewhere in one batch. Several keys are those of one chain, head first: with the
// first of its blocks that is then got or put, all of them count as asked for, as after Probe. The keys are only read.
func (s *Store) ContainsBatch(ctx context.Context, ns string, keys [][]byte) []bool {
	found := make([]bool, len(keys))
	if s.here.unanswered(ctx, len(keys)) {
		return found
	}
	missing, cold := 0, false
	for at := 0; at < len(keys); at += residency.LookStep {
		end := min(at+residency.LookStep, len(keys))
		m, c := s.here.lookMany(ns, keys[at:end], found[at:end])
		missing, cold = missing+m, cold || c
	}
	if missing > 0 && s.others.AsksElsewhere() {
		ask, places := make([]string, 0, missing), make([]int, 0, missing)
		for i, here := range found {
			if !here {
				ask, places = append(ask, string(keys[i])), append(places, i)
			}
		}
		located := s.others.Located(ctx, ns, ask)
		for j, copies := range located {
			if copies != nil {
				found[places[j]] = true
				missing--
			}
		}
		prefetchLeading(s, ns, found, ask, places, located)
	}
	if cold {
		load.PrefetchOwn(s.load, ns, keys[:slices.Index(append(found, false), false)], false)
	}
	s.state.Count.Lookups(ns, len(keys), len(keys)-missing)
	lookedUp(s.state, ns, keys, found, missing)
	return found
}

// lookedUp records a look-up of some keys, so many of which are missing.
func lookedUp(s *residency.State, ns string, keys [][]byte, found []bool, missing int) {
	if residency.IsRequest(len(keys), missing) {
		s.Requests.LookedUp(ns, block.CopyKeys(keys), Hint{}, func(i int) bool { return found[i] })
	}
}

// prefetchLeading starts to bring here what others have of the keys before the first that is nowhere: an
// engine that looks for a chain may load that much of it. Those that others were asked for are given with
// their places among all.
func prefetchLeading(s *Store, ns string, found []bool, asked []string, places []int, located [][]directory.Statement) {
	if !s.state.Requests.Prefetched.Pays() {
		return
	}
	coming := load.NewPrefetch(ns, len(asked))
	for j, i := range places {
		if !found[i] {
			break
		}
		coming.Add(asked[j], others.Hit{Found: true, Size: located[j][0].Info.Size, Copies: located[j]})
	}
	s.load.StartPrefetch(coming)
}
