package segment

import (
	"errors"
	"fmt"

	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// ErrBadItem says that the caller made a mistake. All other errors are those of
// package tiers, wrapped with what happened to which block or file; one that
// matches tiers.ErrFull matches tiers.ErrUnavailable too.
var ErrBadItem = errors.New("segment: bad item")

// Busy says that an operation was given up at its context's end while the
// kernel still works on the caller's memory: dst of a read, Data of a put. It
// matches ErrUnavailable and the context's error.
type Busy struct {
	what  string
	cause error
	done  chan struct{}
}

// Done is closed when the memory is no longer touched. Until then a read's dst
// must stay mapped and must not be given to anyone else, and a put's Data must
// stay mapped.
func (b *Busy) Done() <-chan struct{} { return b.done }

// Error says what hangs and why its caller left.
func (b *Busy) Error() string {
	return fmt.Sprintf("segment: %s is still in the kernel after %v: check the file system's servers", b.what, b.cause)
}

// Unwrap makes errors.Is match ErrUnavailable and the context's error.
func (b *Busy) Unwrap() []error { return []error{tiers.ErrUnavailable, b.cause} }

func unavailable(what string, err error) error {
	return fmt.Errorf("%w: %s: %w", tiers.ErrUnavailable, what, err)
}

// full is unavailable for want of room.
func full(what string, err error) error {
	return fmt.Errorf("%w: %w: %s: %w", tiers.ErrFull, tiers.ErrUnavailable, what, err)
}

// isFull reports whether err says that there is no space or quota left.
func isFull(err error) bool {
	return errors.Is(err, vfs.ErrNoSpace) || errors.Is(err, vfs.ErrQuota)
}
