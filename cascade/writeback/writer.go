package writeback

import (
	"cascadekv/cascade/eviction"
	"cascadekv/cascade/residency"
	"cascadekv/internal/locks"
)

// Writer writes dirty blocks, and changes of names, to the cold tier. It is safe
// for concurrent use.
type Writer struct {
	state *residency.State
	evict *eviction.Evictor
	space Space

	writing  *locks.Token // who holds it writes to the cold tier
	coldFull bool         // the cold tier refused the last write for want of room; guarded by writing
}

// Space decides what the cold tier keeps.
type Space interface {
	// Shrink gives up blocks of the cold tier until it keeps its budget.
	Shrink()

	// AcceptedLocked is called when the cold tier has taken blocks, with State.Mu held.
	AcceptedLocked()
}

// New returns the writer of a rank.
func New(s *residency.State, e *eviction.Evictor, space Space) *Writer {
	return &Writer{state: s, evict: e, space: space, writing: locks.NewToken(locks.Writing)}
}
