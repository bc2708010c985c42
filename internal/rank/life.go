package rank

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"cascadekv/internal/config"
	"cascadekv/internal/fault"
)

// Running is a rank as Run needs it; Rank is one.
type Running interface {
	Serve(ctx context.Context) error
	Reload(c config.Config, password string)
	ReloadFailed()
	Shutdown(ctx context.Context) error
}

// RunOptions describe the life of a rank.
type RunOptions struct {
	Sources  config.Sources // read again for a reload
	Loaded   *config.Loaded // of Sources, as Load returns it with
	Password string

	// Open makes the rank. It should return soon when ctx ends; OpenTimeout bounds
	// how long it is waited for then, 0: without bound.
	Open        func(ctx context.Context, c config.Config, password string) (Running, error)
	OpenTimeout time.Duration

	// Rescue ends the rank, with a drain, as soon as it is open: what a killed one left is
	// in lustre then.
	Rescue bool

	// Signals has SIGHUP, which reloads the configuration, and signals to end.
	Signals <-chan os.Signal

	// Reloaded is called with a configuration that was accepted, before the rank
	// has it; nil: nothing is.
	Reloaded func(*config.Loaded)

	Now func() time.Time // the clock by which signals are compared; default time.Now
	Log *slog.Logger
}

// SameOrder is how long after the first signal to end further ones are taken for
// that same order. timeout(1) signals its child and then the child's process
// group, Ctrl-C reaches every process of the group and wrappers forward it, and
// batch systems signal a job's steps and its script.
const SameOrder = 5 * time.Second

// StepLost among Signals is an order to end that nobody gave: the process that Slurm started this one with
// is gone. Whoever learns of that later, as an epilog, gives the first order.
var StepLost os.Signal = stepLost{}

type stepLost struct{}

func (stepLost) String() string { return "the rank's step is lost" }
func (stepLost) Signal()        {}

// errCutShort ends a life without a drain.
var errCutShort = errors.New("a second signal ended the rank without draining")

// Run opens a rank, serves, turns signals into calls of it, and shuts it down: at
// the end of ctx, after a signal to end, or when serving fails. It logs what
// happens, and returns nil after a complete drain and for a start that a signal
// ended.
func Run(ctx context.Context, o RunOptions) error {
	if o.Now == nil {
		o.Now = time.Now
	}
	l := &life{RunOptions: o}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := l.open(ctx, cancel)
	if r == nil {
		return err
	}
	if l.Rescue {
		return l.drain(r)
	}
	return l.serve(ctx, r)
}

// life is one run of a rank. It belongs to the goroutine of Run.
type life struct {
	RunOptions
	ordered time.Time // when the first signal to end was read; zero: none was
}

// cutShort records a signal to end. It reports whether the signal is a second
// order, to end without draining.
func (l *life) cutShort(sig os.Signal) bool {
	if sig == StepLost {
		return false
	}
	now := l.Now()
	if l.ordered.IsZero() {
		l.ordered = now
		return false
	}
	if now.Sub(l.ordered) < SameOrder {
		l.Log.Info("signal repeated within "+SameOrder.String()+": taken for the same order", "signal", sig.String())
		return false
	}
	l.Log.Warn("second signal: exit without draining", "signal", sig.String())
	return true
}

// open waits for the rank to be ready. A signal to end before that cancels the
// opening, and then there is no rank and no error; the tiers are left as they were
// found. A reload waits for the end of the opening.
func (l *life) open(ctx context.Context, cancel func()) (Running, error) {
	type outcome struct {
		rank Running
		err  error
	}
	opened := make(chan outcome, 1)
	go func() {
		defer fault.Guard()()
		r, err := l.Open(ctx, l.Loaded.Config, l.Password)
		opened <- outcome{r, err}
	}()
	stopping, reload := false, false // SIGTERM came, SIGHUP came
	var late <-chan time.Time
	for {
		select {
		case o := <-opened:
			switch {
			case stopping && o.err == nil:
				return nil, l.drain(o.rank)
			case stopping:
				return nil, nil
			case o.err != nil:
				l.Log.Error("cannot start", "err", o.err)
				return nil, o.err
			}
			if reload {
				l.reload(o.rank)
			}
			return o.rank, nil
		case <-late:
			l.Log.Warn("the start does not end, perhaps for a file system that does not answer: it is given up")
			return nil, nil
		case sig := <-l.Signals:
			switch {
			case sig == syscall.SIGHUP:
				reload = true
			case l.cutShort(sig):
				return nil, errCutShort
			case !stopping:
				l.Log.Info("stopping before start is complete", "signal", sig.String())
				stopping = true
				cancel()
				if l.OpenTimeout > 0 {
					late = time.After(l.OpenTimeout)
				}
			}
		}
	}
}

func (l *life) serve(ctx context.Context, r Running) error {
	served := make(chan error, 1)
	go func() {
		defer fault.Guard()()
		served <- r.Serve(ctx)
	}()
	for {
		select {
		case err := <-served:
			if ctx.Err() != nil {
				return l.drain(r)
			}
			l.Log.Error("serving ended; draining", "err", err)
			return errors.Join(fmt.Errorf("serving ended: %w", err), l.drain(r))
		case sig := <-l.Signals:
			if sig == syscall.SIGHUP {
				l.reload(r)
				continue
			}
			l.cutShort(sig)
			l.Log.Info("draining; a signal that comes later than "+SameOrder.String()+" after this one ends the rank without it",
				"signal", sig.String(), "deadline", l.Loaded.Deadline.Drain.String())
			return l.drain(r)
		case <-ctx.Done():
			return l.drain(r)
		}
	}
}

// drain shuts the rank down within the configured time, or at once when it is
// ordered again to end.
func (l *life) drain(r Running) error {
	ctx, cancel := context.WithTimeout(context.Background(), l.Loaded.Deadline.Drain.Std())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer fault.Guard()()
		done <- r.Shutdown(ctx)
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				l.Log.Error("the rank has not ended in good order: what could not be written is where the lines before say, or gone", "err", err)
				return err
			}
			l.Log.Info("cascaded ends")
			return nil
		case sig := <-l.Signals:
			if sig != syscall.SIGHUP && l.cutShort(sig) {
				return errCutShort
			}
		}
	}
}

// reload reads every source again. On any error the rank goes on as it was.
func (l *life) reload(r Running) {
	fresh, password, err := Load(l.Sources)
	var changed []string
	if err == nil {
		_, changed, err = config.Reload(l.Loaded.Config, fresh.Config)
	}
	if err != nil {
		all := []error{err}
		var joined interface{ Unwrap() []error }
		if errors.As(err, &joined) {
			all = joined.Unwrap()
		}
		for _, e := range all {
			l.Log.Error("reload refused, nothing changed", "err", e)
		}
		r.ReloadFailed()
		return
	}
	if password != l.Password {
		changed = append(changed, "the password")
	}
	l.Loaded, l.Password = fresh, password
	if l.Reloaded != nil {
		l.Reloaded(fresh)
	}
	r.Reload(fresh.Config, password)
	l.Log.Info("reloaded", "changed", changed)
}
