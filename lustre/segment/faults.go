package segment

import (
	"context"
	"errors"
	"os"
	"sync/atomic"

	"cascadekv/internal/vfs"
)

// ReadErrors counts reads that failed, by what their caller was told or, where the
// file system did not answer, by why. Those of merges count too; those that their
// caller ended do not.
type ReadErrors struct {
	Corrupt    uint64 // other bytes than were written, or a file that ends early
	Gone       uint64 // the file, or the block in it, is there no more, or the handle is stale
	Unanswered uint64 // not in time, a server that is away, or not tried therefore
	Failed     uint64 // an error of the file system, such as EIO
}

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
	_, refused := errors.AsType[*refusal](err)
	switch {
	case errors.Is(err, ErrBadItem), errors.Is(err, ErrClosed), errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, ErrCorrupt):
		return &f.corrupt
	case errors.Is(err, ErrNotFound), errors.Is(err, os.ErrNotExist), errors.Is(err, vfs.ErrStale):
		return &f.gone
	case refused, isAway(err), errors.Is(err, context.DeadlineExceeded):
		return &f.unanswered
	}
	return &f.failed
}

func (f *faults) reads() ReadErrors {
	return ReadErrors{Corrupt: f.corrupt.Load(), Gone: f.gone.Load(), Unanswered: f.unanswered.Load(), Failed: f.failed.Load()}
}
