package index

import (
	"errors"
	"fmt"

	"cascadekv/lustre/index/home"
)

// Errors of the index, always wrapped with what happened to what. Test with
// errors.Is.
var (
	ErrNotFound    = errors.New("index: not stored")                                // a miss
	ErrBroken      = errors.New("index: broken, all is a miss until it is rebuilt") // matches ErrNotFound too
	ErrUnavailable = home.ErrUnavailable                                            // Open only
	ErrSharedFS    = home.ErrSharedFS                                               // Open only
	ErrClosed      = errors.New("index: closed")                                    // permanent
	ErrBadItem     = errors.New("index: bad item")                                  // the caller's mistake
	ErrBadFormat   = home.ErrBadFormat                                              // of codecs
)

// brokenError reports why an index is broken. It is a miss for those who only ask
// whether a block is there.
type brokenError struct{ cause error }

func (e *brokenError) Error() string {
	return fmt.Sprintf("%v: %v: check the disk under it", ErrBroken, e.cause)
}

func (e *brokenError) Unwrap() []error { return []error{ErrBroken, ErrNotFound, e.cause} }

func badFormat(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBadFormat, fmt.Sprintf(format, args...))
}

func badItem(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBadItem, fmt.Sprintf(format, args...))
}
