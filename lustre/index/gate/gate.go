package gate

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// Gate is Pebble's scheduler of compactions, but none begins before the database
// is open: one that has begun when opening fails works on memory that was given
// back already, and panics. Nor does one while it is shut, so that a rebuild does
// not share the CPU with the merging of what it has just written.
//
// The scheduler within grants when something ends or is asked for, and has no
// goroutine that nobody could stop when opening fails.
type Gate struct {
	*pebble.ConcurrencyLimitScheduler
	goroutines int
	db         pebble.DBForCompaction
	registered bool
	opened     atomic.Bool
}

// New returns a gate that is shut.
func New() *Gate {
	return &Gate{ConcurrencyLimitScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
}

// IsOpen reports whether compactions may begin.
func (g *Gate) IsOpen() bool { return g.opened.Load() }

// Shut keeps compactions from beginning until Open.
func (g *Gate) Shut() { g.opened.Store(false) }

// Register is called by Pebble while it opens.
func (g *Gate) Register(goroutines int, db pebble.DBForCompaction) {
	g.goroutines, g.db = goroutines, db
}

// TrySchedule is called by Pebble when there is something to compact.
func (g *Gate) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !g.opened.Load() {
		return false, nil
	}
	return g.ConcurrencyLimitScheduler.TrySchedule()
}

// UpdateGetAllowedWithoutPermission is called by Pebble after flushes.
func (g *Gate) UpdateGetAllowedWithoutPermission() {
	if g.opened.Load() {
		g.ConcurrencyLimitScheduler.UpdateGetAllowedWithoutPermission()
	}
}

// Open lets compactions begin, with what is waiting. The first time it must come
// before any other goroutine has the gate.
func (g *Gate) Open() {
	if !g.registered {
		g.registered = true
		g.ConcurrencyLimitScheduler.Register(g.goroutines, g.db)
	}
	if g.opened.Swap(true) {
		return
	}
	if ok, grant := g.TrySchedule(); ok {
		grant.Done() // the end of one makes it look for the next
	}
}
