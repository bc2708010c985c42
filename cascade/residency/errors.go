package residency

import (
	"errors"

	"cascadekv/internal/block"
)

// BlockID addresses a block by the SHA-256 of its bytes (CASCADE §III-A).
type BlockID = block.ID

// Errors of the store. Test with errors.Is.
var (
	ErrMiss       = errors.New("cascade: miss")                                                    // not stored here: compute it
	ErrNoRoom     = errors.New("cascade: no room: every block is pinned, leased or being written") // retry later or drop
	ErrTooLarge   = errors.New("cascade: block can never fit")                                     // permanent
	ErrCondition  = errors.New("cascade: condition not met")                                       // of IfAbsent or IfPresent
	ErrBadEntry   = errors.New("cascade: bad entry")                                               // caller's mistake
	ErrOverBudget = errors.New("cascade: the budget of reads from the cold tier is used up")       // compute it, or ask later
	ErrClosed     = errors.New("cascade: store is closed")                                         // permanent
)
