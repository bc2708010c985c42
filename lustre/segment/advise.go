package segment

import (
	"slices"

	"cascadekv/lustre/segment/pool"
)

// Adviser informs the servers of a file of what will be read of it soon, so that
// they read from their disks in long runs what is asked for in pieces;
// lustre/layout has one.
type Adviser interface {
	// WillRead announces n bytes from off on. There is one call at a time, from
	// a goroutine of its own, and it may take as long as the file system.
	// False: nobody listens, and no more calls are made.
	WillRead(path string, off, n int64) bool
}

const (
	// adviseFrom is how many calls of a batch must wait for others before the
	// servers are informed of them: the rest are there as soon as advice would be.
	adviseFrom = batchDepth

	// adviseGap is the largest run that nobody wants in what is announced, and
	// adviseShare how much is wanted at least: one byte in so many. Disks read
	// on in such gaps faster than they look for what lies behind.
	adviseGap   = 1 << 20
	adviseShare = 4

	// advisePieces is how many reads a run must save the disks.
	advisePieces = 8
)

// advice is what a store has given its Adviser.
type advice struct {
	to    Adviser    // nil: nobody
	alone pool.Alone // a call may hang: nothing else is announced meanwhile
}

// stretch is a run of bytes in a file of which many are wanted.
type stretch struct {
	file             source
	off, end, wanted int64
	pieces           int
}

// stretches joins extents, which must be sorted, to the runs that are worth announcing.
func stretches(extents []wanted) []stretch {
	var all []stretch
	for _, e := range extents {
		if e.size == 0 {
			continue
		}
		if len(all) > 0 {
			s := &all[len(all)-1]
			end := max(s.end, e.off+e.size)
			if s.file == e.file && e.off-s.end <= adviseGap && (s.wanted+e.size)*adviseShare >= end-s.off {
				s.end, s.wanted, s.pieces = end, s.wanted+e.size, s.pieces+1
				continue
			}
		}
		all = append(all, stretch{e.file, e.off, e.off + e.size, e.size, 1})
	}
	return slices.DeleteFunc(all, func(s stretch) bool { return s.pieces < advisePieces })
}

// advise informs the servers of extents that will be read, unless they are
// being informed of others. It does not wait for them, and sorts extents.
func (a *advice) advise(extents []wanted) {
	if a.to == nil || len(extents) < advisePieces || !a.alone.Begin() {
		return
	}
	slices.SortFunc(extents, byPlace)
	runs := stretches(extents)
	go func() {
		heard := true
		defer func() { a.alone.End(heard) }()
		for _, one := range runs {
			if heard = a.to.WillRead(one.file.where(), one.off, one.end-one.off); !heard {
				return
			}
		}
	}()
}
