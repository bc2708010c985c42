package policy

import (
	"fmt"
	"strings"
)

// Words that select a policy in configuration and in replays.
const (
	Prefix = "prefix" // what is likely to be used again soon stays: the default
	LRU    = "lru"    // least recently used
	ARC    = "arc"    // adaptive replacement cache
	S3FIFO = "s3fifo" // three queues
	Paper  = "paper"  // CASCADE equation 4 as written

	FIFO     = "fifo"     // order of arrival
	SIEVE    = "sieve"    // a queue and a hand
	LFUDA    = "lfuda"    // least frequently used, with dynamic aging
	WTinyLFU = "wtinylfu" // admission by frequency
)

// Names returns the words that the daemon offers, the default first. The caller owns the
// slice.
func Names() []string { return []string{Prefix, LRU, ARC, S3FIFO, Paper} }

// AllNames returns the words New accepts: Names, and policies to compare those with. The
// caller owns the slice.
func AllNames() []string { return append(Names(), FIFO, SIEVE, LFUDA, WTinyLFU) }

// UnknownError: no policy has the name asked for.
type UnknownError struct {
	Name string // as the caller gave it
}

// Error names the policies there are.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("policy: no eviction policy is called %q: use one of %s", e.Name, strings.Join(AllNames(), ", "))
}

// CapacityError: a tier cannot have the capacity given.
type CapacityError struct {
	Bytes int64
}

// Error names which capacities there are.
func (e *CapacityError) Error() string {
	return fmt.Sprintf("policy: a tier cannot have a capacity of %d bytes: give its size, or 0 when it is unbounded", e.Bytes)
}

// New returns an empty policy for a tier of capacityBytes; 0 means that the
// tier is unbounded. The empty name selects the default. Errors:
// *UnknownError, *CapacityError.
func New(name string, capacityBytes int64) (Policy, error) {
	if capacityBytes < 0 {
		return nil, &CapacityError{Bytes: capacityBytes}
	}
	switch name {
	case Prefix, "":
		return newPrefix(capacityBytes), nil
	case LRU:
		return &lru{}, nil
	case ARC:
		return newArc(capacityBytes), nil
	case S3FIFO:
		return newS3FIFO(capacityBytes), nil
	case Paper:
		return &paper{}, nil
	case FIFO:
		return &fifo{}, nil
	case SIEVE:
		return &sieve{}, nil
	case LFUDA:
		return &lfuda{}, nil
	case WTinyLFU:
		return newWTinyLFU(capacityBytes), nil
	}
	return nil, &UnknownError{Name: name}
}
