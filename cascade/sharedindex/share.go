package sharedindex

import (
	"errors"
)

// ErrNoArena means that no memory tier of the store lies in a file that other
// processes can map. Permanent.
var ErrNoArena = errors.New("cascade: no memory tier lies in a file; configure shm.bytes")
