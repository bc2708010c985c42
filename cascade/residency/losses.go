package residency

import (
	"context"
	"errors"
	"io/fs"
	"sync"

	"cascadekv/tiers"
)

// The steps of a load in which a block can be lost.
const (
	StepLookup     = "lookup"
	StepPin        = "pin"
	StepRemote     = "remote"
	StepSegment    = "segment"
	StepCopy       = "copy"
	StepCompletion = "completion"
)

// LossCounts has, by step and reason, how many keys were not served although they
// should have been: their block was known to be stored, or nobody answered whether it
// is.
type LossCounts map[string]map[string]uint64

// Add adds n to what is counted for a step and a reason.
func (c LossCounts) Add(step, reason string, n uint64) {
	if n == 0 {
		return
	}
	if c[step] == nil {
		c[step] = map[string]uint64{}
	}
	c[step][reason] += n
}

// Merge adds other counts.
func (c LossCounts) Merge(other LossCounts) {
	for step, reasons := range other {
		for reason, n := range reasons {
			c.Add(step, reason, n)
		}
	}
}

// Losses counts what loads lose. The zero value has counted nothing. It is safe for
// concurrent use.
type Losses struct {
	mu struct {
		sync.Mutex
		counts LossCounts
	}
}

// Add counts n keys that were lost in a step, for a reason.
func (l *Losses) Add(step, reason string, n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.counts == nil {
		l.mu.counts = LossCounts{}
	}
	l.mu.counts.Add(step, reason, n)
}

// AddError is Add for an error of a step. Who has given up loses nothing.
func (l *Losses) AddError(step string, err error, n uint64) {
	if !errors.Is(err, context.Canceled) {
		l.Add(step, ReasonOf(err), n)
	}
}

// Counts returns what was counted so far.
func (l *Losses) Counts() LossCounts {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := LossCounts{}
	c.Merge(l.mu.counts)
	return c
}

// ReasonOf returns the word for an error of a step under which losses are counted.
func ReasonOf(err error) string {
	for _, r := range reasons {
		if errors.Is(err, r.is) {
			return r.reason
		}
	}
	return "unavailable"
}

// reasons maps errors to reasons. An error that matches several has the first.
var reasons = []struct {
	is     error
	reason string
}{
	{tiers.ErrCorrupt, "corrupt"},
	{context.DeadlineExceeded, "deadline"},
	{context.Canceled, "cancelled"},
	{ErrClosed, "closed"},
	{ErrOverBudget, "over_budget"},
	{ErrNoRoom, "no_room"},
	{ErrTooLarge, "no_room"},
	{tiers.ErrNotFound, "gone"},
	{ErrMiss, "gone"},
	{fs.ErrNotExist, "gone"},
}
