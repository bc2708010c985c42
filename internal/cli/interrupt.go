package cli

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// sameOrder is how long after the first SIGINT or SIGTERM further ones are taken
// for that same order: timeout(1) and wrappers send several.
const sameOrder = 5 * time.Second

// Interruptible returns a context that ends with the first SIGINT or SIGTERM. A
// verb that does not watch it, and any verb that is still running when another
// signal comes later, is ended by the signal as if nobody handled it.
func Interruptible() context.Context {
	ctx := newInterruptible(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for sig := range signals {
			if ctx.signal(time.Now()) {
				endBy(sig)
			}
		}
	}()
	return ctx
}

// interruptible is the context of a verb. It ends with the first signal to end,
// so that a verb that waits for its end can clean up.
type interruptible struct {
	context.Context
	watched atomic.Bool // somebody waits for its end, or asked whether it has ended
	cancel  context.CancelFunc
	first   time.Time // when the first signal came; zero: none did
}

func newInterruptible(parent context.Context) *interruptible {
	ctx, cancel := context.WithCancel(parent)
	return &interruptible{Context: ctx, cancel: cancel}
}

// Done implements context.Context.
func (i *interruptible) Done() <-chan struct{} {
	i.watched.Store(true)
	return i.Context.Done()
}

// Err implements context.Context.
func (i *interruptible) Err() error {
	i.watched.Store(true)
	return i.Context.Err()
}

// signal cancels the context at the first signal. It reports whether the program
// is to end at once: for a signal that comes sameOrder after the first or later,
// and for any signal while nobody watches the context. A verb that does not has
// nothing to clean up, and may wait for a terminal or a file system. It must not
// be called concurrently.
func (i *interruptible) signal(at time.Time) (end bool) {
	switch {
	case !i.watched.Load():
		return true
	case i.first.IsZero():
		i.first = at
		i.cancel()
		return false
	}
	return at.Sub(i.first) >= sameOrder
}

// endBy ends this program as sig does that nobody handles, so that whoever
// waits for it learns of the signal.
func endBy(sig os.Signal) {
	signal.Reset(sig)
	if s, ok := sig.(syscall.Signal); ok {
		_ = syscall.Kill(os.Getpid(), s) // allowed: it is this process
	}
}
