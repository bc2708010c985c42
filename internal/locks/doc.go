// Package locks has mutexes with a place in an order. In builds with the tag
// invariants a goroutine that locks them in another order, or that lacks a lock it
// must hold, panics; in other builds they are those of package sync and the checks
// are empty.
//
// The package does not check locks that it does not define, nor those that a
// goroutine passes to another one: who locks unlocks.
package locks
