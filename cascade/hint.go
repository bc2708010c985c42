package cascade

import (
	"context"

	"cascadekv/cascade/load"
	"cascadekv/cascade/residency"
)

// Hint is what a client declares of how a chain will be used.
type Hint = residency.Hint

// Declare takes in what is declared of a chain of keys, head first, and returns how many of them have blocks on
// this rank: only those are reached. What is asked for soon is on its way into memory when it returns, or its
// first blocks are, as with Probe. It is no access, and leases nothing.
func Declare(ctx context.Context, s *Store, ns string, keys []string, h Hint) (reached int) {
	if h.Soon {
		lookUp(ctx, s, ns, keys).prefetch(s, len(keys))
	}
	for end := len(keys); end > 0; { // so that the head is the youngest
		at := (end - 1) / residency.LookStep * residency.LookStep
		reached += declareSome(s, ns, keys[at:end], Hint{Shared: h.Shared - at, Due: h.Due, Soon: h.Soon})
		end = at
	}
	if h.Soon {
		load.PrefetchOwn(s.load, ns, keys, true)
	}
	return reached
}

// declareSome passes the policies what is declared of some keys, and returns how many of those have blocks.
func declareSome(s *Store, ns string, keys []string, h Hint) (reached int) {
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	first := h.Shared
	h.Shared = 0
	for i, k := range keys {
		n := residency.VisibleLocked(s.state, ns, k)
		if n == nil {
			continue
		}
		if i < first {
			h.Shared++
		}
		s.state.Requests.MentionLocked(residency.BlockOf(n))
		reached++
	}
	s.state.Requests.HintLocked(h)
	return reached
}
