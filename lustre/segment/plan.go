package segment

import (
	"cmp"
	"slices"
)

const (
	// worthMerging is the live share up to which a segment is rewritten with no
	// need for room: what comes back is at least what must be written.
	worthMerging = 0.5

	// Above tight of the budget segments are rewritten whatever their live
	// share, if it is not above hopeless, until relaxed of it is in use.
	tight, relaxed = 0.9, 0.8
	hopeless       = 0.95

	// worthInShortage takes the place of worthMerging while the file system has no
	// room.
	worthInShortage = 0.8
)

// shape is a segment as the plan of merging sees it, in bytes.
type shape struct {
	file *file
	size int64 // of the file
	live int64 // of that, what must be kept, as far as known
}

func (s shape) share() float64 { return float64(s.live) / float64(max(1, s.size)) }

// plan chooses the segments to rewrite next, emptiest first, of which at most
// most bytes must be moved (one segment may exceed it alone). It has no state:
// the same shapes give the same plan. A budget of 0 is none.
//
// short says that the file system has no room. Then those come first of which
// the least must be moved, and nothing exceeds most: what is moved takes room
// before the rest of its segment gives any.
func plan(shapes []shape, budget, most int64, short bool) []shape {
	order := slices.Clone(shapes)
	slices.SortStableFunc(order, func(a, b shape) int {
		if short {
			return cmp.Compare(a.live, b.live)
		}
		return cmp.Compare(a.share(), b.share())
	})
	var used int64
	for _, s := range order {
		used += s.size
	}
	urgent := budget > 0 && float64(used) > tight*float64(budget)
	var chosen []shape
	var moved int64
	for _, s := range order {
		worth := worthMerging
		switch {
		case urgent && float64(used) > relaxed*float64(budget):
			worth = hopeless
		case short:
			worth = worthInShortage
		}
		if s.share() > worth {
			continue
		}
		if (short || len(chosen) > 0) && moved+s.live > most {
			break
		}
		chosen = append(chosen, s)
		moved += s.live
		used -= s.size - s.live
	}
	return chosen
}
