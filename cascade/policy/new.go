package policy

import (
	"fmt"
	"strings"
)

// Words that select a policy in configuration.
const (
	Prefix = "prefix" // bounded protection of reused prefixes: the default
	LRU    = "lru"    // least recently used
	Paper  = "paper"  // CASCADE equation 4 as written
)

// Names returns the words New accepts, the default first. The caller owns the
// slice.
func Names() []string { return []string{Prefix, LRU, Paper} }

// UnknownError: no policy has the name asked for.
type UnknownError struct {
	Name string // as the caller gave it
}

// Error names the policies there are.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("policy: no eviction policy is called %q: use one of %s", e.Name, strings.Join(Names(), ", "))
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
	case Paper:
		return &paper{}, nil
	}
	return nil, &UnknownError{Name: name}
}
