package residency

import (
	"context"
	"errors"

	"cascadekv/internal/locks"
)

// Waiters wait for a change of the state. Guarded by State.Mu.
type Waiters struct {
	changed chan struct{}
	waiting int
}

// Join adds a waiter. The channel is closed when it should look again.
func (w *Waiters) Join() <-chan struct{} {
	w.waiting++
	return w.changed
}

// UntilFetched is ctx for as long as one fetch may take.
func (s *State) UntilFetched(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.Limits.Load().FetchDeadline)
}

// TakeSlot takes one of the slots that a channel bounds. The caller does not hold
// State.Mu. The error is that of ctx.
func TakeSlot(ctx context.Context, slots chan struct{}) error {
	locks.AssertBefore(locks.State)
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lingering is an error of an operation that still uses its memory: in a hung
// file system, or on a fabric, it can outlast its deadline.
type lingering interface {
	error
	Done() <-chan struct{}
}

// Lingers reports whether an operation that failed still uses its memory.
func Lingers(err error) bool {
	var l lingering
	return errors.As(err, &l)
}

// AfterIO runs free once an operation that failed no longer uses its memory.
func AfterIO(err error, free func()) {
	var l lingering
	if !errors.As(err, &l) {
		free()
		return
	}
	go func() {
		<-l.Done()
		free()
	}()
}
