package index

import (
	"errors"
	"fmt"
)

// Errors of the index, always wrapped with what happened to what. Test with
// errors.Is.
var (
	ErrNotFound    = errors.New("index: not stored")                                 // a miss
	ErrBroken      = errors.New("index: broken, all is a miss until it is rebuilt")  // matches ErrNotFound too
	ErrUnavailable = errors.New("index: directory cannot be used")                   // Open only
	ErrSharedFS    = errors.New("index: directory is not on node-local storage")     // Open only
	ErrClosed      = errors.New("index: closed")                                     // permanent
	ErrBadItem     = errors.New("index: bad item")                                   // the caller's mistake
	ErrBadFormat   = errors.New("index: not a record of this version of the format") // of codecs
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
