package segment

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/internal/fault"
)

// pool bounds how many operations are in the kernel at once. Its capacity is
// the bound.
type pool chan struct{}

// place is what one operation has taken in a pool. One that takes longer than
// slowAfter leaves it to another, so that an operation that hangs holds up none
// on other servers: the breaker bounds how many may hang.
type place struct {
	pool  pool
	left  atomic.Bool
	timer *time.Timer
}

// taken is the place of who has just sent to p.
func (p pool) taken() *place {
	pl := &place{pool: p}
	pl.timer = time.AfterFunc(slowAfter, pl.leave)
	return pl
}

func (pl *place) leave() {
	if !pl.left.Swap(true) {
		<-pl.pool
	}
}

// end leaves the place if it was not left before.
func (pl *place) end() {
	pl.timer.Stop()
	pl.leave()
}

// job is one operation of a pool.
type job struct {
	state atomic.Int32         // running, then settled or abandoned
	file  atomic.Pointer[file] // where it writes, once known
}

const (
	running = iota
	settled
	abandoned
)

// settle makes the outcome final: when it returns true the caller waits for
// the job's end and takes its result. False: the caller has left.
func (j *job) settle() bool {
	return j.state.CompareAndSwap(running, settled) || j.state.Load() == settled
}

// run calls fn and waits for it, or for ctx. An error means that the caller
// left: *Busy when fn still runs, otherwise fn was never called. Without a
// deadline or cancel function fn runs on the caller's own goroutine.
func (p pool) run(ctx context.Context, what string, j *job, fn func()) error {
	if ctx.Err() != nil {
		return unavailable(what, ctx.Err())
	}
	select {
	case p <- struct{}{}:
	case <-ctx.Done():
		return unavailable(what+": all I/O threads are waiting for the file system", ctx.Err())
	}
	held := p.taken()
	if ctx.Done() == nil {
		defer held.end()
		fn()
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer fault.Guard()()
		defer close(done)
		defer held.end()
		fn()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	if j.state.CompareAndSwap(running, abandoned) {
		return &Busy{what: what, cause: ctx.Err(), done: done}
	}
	<-done
	return nil
}

// within runs fn as run does and returns its error. end is called once: when fn
// has ended, or when it was never called.
func (p pool) within(ctx context.Context, what string, end func(), fn func() error) error {
	var err error
	left := p.run(ctx, what, &job{}, func() {
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

// lock is a mutex whose waiters can give up.
type lock chan struct{}

func newLock() lock { return make(lock, 1) }

func (l lock) acquire(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l lock) release() { <-l }

// without runs fn while mu, which the caller holds, is free. It is held again
// afterwards, also when fn panics: else the deferred Unlock above it would end
// the process with an error of the runtime's, and hide why.
func without(mu *sync.Mutex, fn func()) {
	mu.Unlock()
	defer mu.Lock()
	fn()
}
