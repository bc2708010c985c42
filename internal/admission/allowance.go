package admission

import (
	"context"
	"sync/atomic"
	"time"
)

// Allowance bounds what clients take of something together. Those who are not
// the rank's own user may take others of it. It may be used by any goroutine.
type Allowance struct {
	all, others int64 // bounds: of everybody, and of those who are not the owner
	used        atomic.Int64
	foreign     atomic.Int64 // the part of used that others took
}

// NewAllowance bounds what all take together, and the part of it that those who
// are not the rank's own user may take.
func NewAllowance(all, others int64) *Allowance { return &Allowance{all: all, others: others} }

// Used returns how much is taken.
func (a *Allowance) Used() int64 { return a.used.Load() }

// Take counts n in for a client, or is false when there is no room for it. own is
// for the rank's own user.
func (a *Allowance) Take(n int64, own bool) bool {
	if !own && !AddWithin(&a.foreign, n, a.others) {
		return false
	}
	if AddWithin(&a.used, n, a.all) {
		return true
	}
	if !own {
		a.foreign.Add(-n)
	}
	return false
}

// Give undoes Take.
func (a *Allowance) Give(n int64, own bool) {
	a.used.Add(-n)
	if !own {
		a.foreign.Add(-n)
	}
}

// AddWithin adds n to a sum that stays within limit, or is false.
func AddWithin(sum *atomic.Int64, n, limit int64) bool {
	for {
		used := sum.Load()
		if n > limit-used {
			return false
		}
		if sum.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// takePause is how often TakeSoon tries again.
const takePause = 2 * time.Millisecond

// TakeSoon is Take until ctx ends. What is larger than all that others may take
// together has it alone.
func (a *Allowance) TakeSoon(ctx context.Context, n int64, own bool) bool {
	for {
		if a.Take(n, own) || !own && n > a.others && a.takeAlone(n) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(takePause):
		}
	}
}

// takeAlone takes n for a client that is not the owner if no other has any.
func (a *Allowance) takeAlone(n int64) bool {
	if !a.foreign.CompareAndSwap(0, n) {
		return false
	}
	a.used.Add(n)
	return true
}

// Share is an allowance as one connection takes of it (resp.Room).
type Share struct {
	Of  *Allowance
	Own bool // for the rank's own user
}

// Take is that of the allowance.
func (s Share) Take(n int64) bool { return s.Of.Take(n, s.Own) }

// Give is that of the allowance.
func (s Share) Give(n int64) { s.Of.Give(n, s.Own) }
