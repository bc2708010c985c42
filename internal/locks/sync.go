//go:build !invariants

package locks

import "sync"

// Mutex is a sync.Mutex with a rank.
type Mutex struct{ sync.Mutex }

// SetRank gives m its rank, before it is used.
func (*Mutex) SetRank(Rank) {}

// AssertHeld panics where invariants are checked and the goroutine does not hold m.
func (*Mutex) AssertHeld() {}

// RWMutex is a sync.RWMutex with a rank.
type RWMutex struct{ sync.RWMutex }

// SetRank gives m its rank, before it is used.
func (*RWMutex) SetRank(Rank) {}

// AssertBefore panics where invariants are checked and the goroutine holds a lock of
// the rank or of a higher one.
func AssertBefore(Rank) {}

func before(*Token, Rank) {}
func taken(*Token, Rank)  {}
func given(*Token, Rank)  {}
