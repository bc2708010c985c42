package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/internal/fault"
	"cascadekv/lustre/segment/breaker"
	"cascadekv/tiers"
)

// Pool bounds how many operations are in the kernel at once. Its capacity is
// the bound.
type Pool chan struct{}

// slot is what one operation has taken in a pool. One that takes longer than
// slowAfter leaves it to another, so that an operation that hangs holds up none
// on other servers: the breaker bounds how many may hang.
type slot struct {
	pool  Pool
	left  sync.Once
	timer *time.Timer
}

// Taken is the place of who has just sent to p.
func (p Pool) Taken() *slot {
	pl := &slot{pool: p}
	pl.timer = time.AfterFunc(breaker.SlowAfter, pl.leave)
	return pl
}

func (pl *slot) leave() { pl.left.Do(func() { <-pl.pool }) }

// End leaves the place if it was not left before. It is free when End returns.
func (pl *slot) End() {
	pl.timer.Stop()
	pl.leave()
}

// Job is one operation of a pool.
type Job struct {
	state atomic.Int32 // running, then settled or abandoned
}

const (
	running = iota
	settled
	abandoned
)

// Settle makes the outcome final: when it returns true the caller waits for
// the job's end and takes its result. False: the caller has left.
func (j *Job) Settle() bool {
	return j.state.CompareAndSwap(running, settled) || j.state.Load() == settled
}

// Run calls fn and waits for it, or for ctx. An error means that the caller
// left: *Busy when fn still runs, otherwise fn was never called. Without a
// deadline or cancel function fn runs on the caller's own goroutine.
func (p Pool) Run(ctx context.Context, what string, j *Job, fn func()) error {
	if ctx.Err() != nil {
		return fmt.Errorf("lustre: %w: %s: %w", tiers.ErrUnavailable, what, ctx.Err())
	}
	select {
	case p <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("lustre: %w: %s: all I/O threads are waiting for the file system: %w", tiers.ErrUnavailable, what, ctx.Err())
	}
	held := p.Taken()
	if ctx.Done() == nil {
		defer held.End()
		fn()
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer fault.Guard()()
		defer close(done)
		defer held.End()
		fn()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	if j.state.CompareAndSwap(running, abandoned) {
		return NewBusy(what, ctx.Err(), done)
	}
	<-done
	return nil
}

// Within runs fn as run does and returns its error. end is called once: when fn
// has ended, or when it was never called.
func (p Pool) Within(ctx context.Context, what string, end func(), fn func() error) error {
	var err error
	left := p.Run(ctx, what, &Job{}, func() {
		defer end()
		err = fn()
	})
	if left == nil {
		return err
	}
	if _, runs := errors.AsType[*Busy](left); !runs {
		end()
	}
	return left
}

// Lock is a mutex whose waiters can give up.
type Lock chan struct{}

// NewLock returns a Lock that is free.
func NewLock() Lock { return make(Lock, 1) }

// Acquire waits for the lock until ctx ends, and returns its error then.
func (l Lock) Acquire(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release frees the lock, which the caller holds.
func (l Lock) Release() { <-l }

// Without runs fn while mu, which the caller holds, is free. It is held again
// afterwards, also when fn panics: else the deferred Unlock above it would end
// the process with an error of the runtime's, and hide why.
func Without(mu *sync.Mutex, fn func()) {
	mu.Unlock()
	defer mu.Lock()
	fn()
}

// Busy is the error of an operation that was given up at its context's end while the
// kernel still works on the caller's memory: dst of a read, Data of a put. It
// matches ErrUnavailable and the context's error.
type Busy struct {
	what  string
	cause error
	done  chan struct{}
}

// NewBusy returns the error of an operation that its caller left for cause. It goes
// on until done is closed.
func NewBusy(what string, cause error, done chan struct{}) *Busy {
	return &Busy{what, cause, done}
}

// Done is closed when the memory is no longer touched. Until then a read's dst
// must stay mapped and must not be given to anyone else, and a put's Data must
// stay mapped.
func (b *Busy) Done() <-chan struct{} { return b.done }

// Error names what hangs and why its caller left.
func (b *Busy) Error() string {
	return fmt.Sprintf("segment: %s is still in the kernel after %v: check the file system's servers", b.what, b.cause)
}

// Unwrap makes errors.Is match ErrUnavailable and the context's error.
func (b *Busy) Unwrap() []error { return []error{tiers.ErrUnavailable, b.cause} }
