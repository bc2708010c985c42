package segment

import (
	"context"
	"errors"
	"os"
	"sync/atomic"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/breaker"
	"cascadekv/tiers"
)

// faults is what a store counts of what went wrong.
type faults struct {
	poisoned                          atomic.Uint64
	corrupt, gone, unanswered, failed atomic.Uint64
}

// count adds the outcome of a read.
func (f *faults) count(err error) {
	switch {
	case err == nil, errors.Is(err, ErrBadItem), errors.Is(err, tiers.ErrClosed), errors.Is(err, context.Canceled):
		// It means nothing for files.
	case errors.Is(err, tiers.ErrCorrupt):
		f.corrupt.Add(1)
	case errors.Is(err, tiers.ErrNotFound), errors.Is(err, os.ErrNotExist), errors.Is(err, vfs.ErrStale):
		f.gone.Add(1)
	case breaker.IsRefused(err), breaker.IsAway(err), errors.Is(err, context.DeadlineExceeded):
		f.unanswered.Add(1)
	default:
		f.failed.Add(1)
	}
}
