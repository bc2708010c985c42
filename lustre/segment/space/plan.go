package space

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

	// WorthInShortage takes the place of worthMerging while the file system has no
	// room.
	WorthInShortage = 0.8
)

// Shape is a segment F as the plan of merging sees it, in bytes.
type Shape[F any] struct {
	File   F
	Size   int64 // of the file
	Live   int64 // of that, what must be kept, as far as known
	Blocks int   // that are live
}

// Share returns the part of the segment that is live.
func (s Shape[F]) Share() float64 { return float64(s.Live) / float64(max(1, s.Size)) }

// Files returns the segments that shapes describe.
func Files[F any](shapes []Shape[F]) []F {
	files := make([]F, len(shapes))
	for i, one := range shapes {
		files[i] = one.File
	}
	return files
}

// Worth estimates what must be kept of a segment, in bytes: blocks that live, of all that
// were put, and of the tables of entries, which have names for the most part, the same
// share; or what a merge wrote beside the blocks, since to write that anew gives nothing
// back.
func Worth(size, live, put, tables, overhead int64) int64 {
	names := int64(float64(tables) * float64(live) / float64(max(1, put)))
	return min(size, live+max(names, overhead))
}

// Plan chooses the segments to rewrite next, emptiest first, of which at most
// most bytes must be moved (one segment may exceed it alone). It has no state:
// the same shapes give the same plan. A budget of 0 is none.
//
// short: the file system has no room. Then those come first of which
// the least must be moved, and nothing exceeds most: what is moved takes room
// before the rest of its segment gives any.
func Plan[F any](shapes []Shape[F], budget, most int64, short bool) []Shape[F] {
	order := slices.Clone(shapes)
	slices.SortStableFunc(order, func(a, b Shape[F]) int {
		if short {
			return cmp.Compare(a.Live, b.Live)
		}
		return cmp.Compare(a.Share(), b.Share())
	})
	var used int64
	for _, s := range order {
		used += s.Size
	}
	urgent := budget > 0 && float64(used) > tight*float64(budget)
	var chosen []Shape[F]
	var moved int64
	for _, s := range order {
		worth := worthMerging
		switch {
		case urgent && float64(used) > relaxed*float64(budget):
			worth = hopeless
		case short:
			worth = WorthInShortage
		}
		if s.Share() > worth {
			continue
		}
		if (short || len(chosen) > 0) && moved+s.Live > most {
			break
		}
		chosen = append(chosen, s)
		moved += s.Live
		used -= s.Size - s.Live
	}
	return chosen
}
