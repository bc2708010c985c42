package writeback

import (
	"context"

	"cascadekv/cascade/content"
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

	shared Shared // nil: nothing is

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

// Shared is which of the blocks to be written other ranks write.
type Shared interface {
	// Divide finds out which blocks, which are pinned and have ids, this rank is to write.
	// patient: one may wait for another rank however long that takes.
	Divide(ctx context.Context, views []*residency.View, patient bool) content.Division

	// WaitsLocked reports whether a block waits for another rank.
	WaitsLocked(*residency.Block) bool

	// UnclaimLocked records that a block that this rank was to write was not written.
	UnclaimLocked(*residency.Block)
}

// Share has the writer write only what no other rank does.
func (w *Writer) Share(s Shared) { w.shared = s }

// New returns the writer of a rank.
func New(s *residency.State, e *eviction.Evictor, space Space) *Writer {
	return &Writer{state: s, evict: e, space: space, writing: locks.NewToken(locks.Writing)}
}
