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
	if err == nil {
		return
	}
	if c := f.kind(err); c != nil {
		c.Add(1)
	}
}

// kind returns what counts errors like err; nil for those that say nothing of
// files.
func (f *faults) kind(err error) *atomic.Uint64 {
	switch {
	case errors.Is(err, ErrBadItem), errors.Is(err, tiers.ErrClosed), errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, tiers.ErrCorrupt):
		return &f.corrupt
	case errors.Is(err, tiers.ErrNotFound), errors.Is(err, os.ErrNotExist), errors.Is(err, vfs.ErrStale):
		return &f.gone
	case breaker.IsRefused(err), breaker.IsAway(err), errors.Is(err, context.DeadlineExceeded):
		return &f.unanswered
	}
	return &f.failed
}
