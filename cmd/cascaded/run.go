package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"cascadekv/internal/config"
	"cascadekv/internal/fault"
)

// rank is a server as this command needs it.
type rank interface {
	// Serve answers clients until Shutdown, then returns nil.
	Serve(ctx context.Context) error
	// Reload takes over the reloadable values; password is "" for none.
	Reload(c config.Config, password string)
	// ReloadFailed tells that the values on disk were refused.
	ReloadFailed()
	// Shutdown stops accepting, drains dirty blocks until ctx ends and gives
	// everything back.
	Shutdown(ctx context.Context) error
}

// opener makes a rank ready to serve. It returns early when ctx ends.
type opener func(ctx context.Context, c config.Config, password string, log *slog.Logger) (rank, error)

// run lives as long as the rank and returns the exit status. now is the clock
// by which signals are compared.
func run(ctx context.Context, s config.Sources, open opener, signals <-chan os.Signal, now func() time.Time, stderr io.Writer) int {
	loaded, password, err := load(s)
	if err != nil {
		fmt.Fprintf(stderr, "cascaded: %v\n", strings.ReplaceAll(err.Error(), "\n", "\ncascaded: "))
		return exitUsage
	}
	level := new(slog.LevelVar)
	level.Set(levelOf(loaded.Log.Level))
	r := &runner{sources: s, loaded: loaded, password: password, level: level, log: newLogger(loaded.Config, level, stderr), signals: signals, now: now}
	r.announce()
	return r.live(ctx, open)
}

func load(s config.Sources) (*config.Loaded, string, error) {
	loaded, err := config.Load(s)
	if err != nil {
		return nil, "", err
	}
	if err := checkStriping(loaded); err != nil {
		return nil, "", err
	}
	password, err := loaded.Password()
	return loaded, password, err
}

// runner is one life of the daemon. It belongs to the goroutine of run.
type runner struct {
	sources  config.Sources
	loaded   *config.Loaded
	password string
	level    *slog.LevelVar
	log      *slog.Logger
	signals  <-chan os.Signal
	now      func() time.Time
	ordered  time.Time // when the first signal to end was read; zero: none was
}

// sameOrder is how long after the first signal to end further ones are taken for
// that same order. timeout(1) signals its child and then the child's process
// group, Ctrl-C reaches every process of the group and wrappers forward it, and
// batch systems signal a job's steps and its script.
const sameOrder = 5 * time.Second

// endNow records a signal to end. It reports whether the signal is a second
// order, to end without draining.
func (r *runner) endNow(sig os.Signal) bool {
	now := r.now()
	if r.ordered.IsZero() {
		r.ordered = now
		return false
	}
	if now.Sub(r.ordered) < sameOrder {
		r.log.Info("signal repeated within "+sameOrder.String()+": taken for the same order", "signal", sig.String())
		return false
	}
	r.log.Warn("second signal: exit without draining", "signal", sig.String())
	return true
}

func (r *runner) announce() {
	changed := []any{}
	for _, k := range config.Keys() {
		if origin := r.loaded.Origin(k.Path); origin != config.Built {
			changed = append(changed, slog.String(k.Path, k.Text(&r.loaded.Config)+" ("+origin+")"))
		}
	}
	r.log.Info("cascaded starts", "pid", os.Getpid(), "go", runtime.Version(), slog.Group("config", changed...))
	for _, w := range r.loaded.Warnings {
		r.log.Warn(w)
	}
}

// live opens the rank, serves, and turns signals into calls.
func (r *runner) live(ctx context.Context, open opener) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, status := r.open(ctx, cancel, open)
	if server == nil {
		return status
	}
	served := make(chan error, 1)
	go func() {
		defer fault.Guard()()
		served <- server.Serve(ctx)
	}()
	for {
		select {
		case err := <-served:
			r.log.Error("serving ended; draining", "err", err)
			r.drain(server)
			return exitFailure
		case sig := <-r.signals:
			if sig == syscall.SIGHUP {
				r.reload(server)
				continue
			}
			r.endNow(sig)
			r.log.Info("draining; a signal that comes later than "+sameOrder.String()+" after this one ends the rank without it",
				"signal", sig.String(), "deadline", r.loaded.Deadline.Drain.String())
			return r.drain(server)
		case <-ctx.Done():
			return r.drain(server)
		}
	}
}

// open waits for the rank to be ready. A signal to stop before that cancels
// the opening; the tiers are left as they were found. A reload waits for its end.
func (r *runner) open(ctx context.Context, cancel func(), open opener) (rank, int) {
	type outcome struct {
		server rank
		err    error
	}
	opened := make(chan outcome, 1)
	go func() {
		defer fault.Guard()()
		server, err := open(ctx, r.loaded.Config, r.password, r.log)
		opened <- outcome{server, err}
	}()
	stopping, again := false, false // SIGTERM came, SIGHUP came
	for {
		select {
		case o := <-opened:
			switch {
			case stopping && o.err == nil:
				return nil, r.drain(o.server)
			case stopping:
				return nil, exitOK
			case o.err != nil:
				r.log.Error("cannot start", "err", o.err)
				return nil, exitFailure
			}
			if again {
				r.reload(o.server)
			}
			return o.server, exitOK
		case sig := <-r.signals:
			if sig == syscall.SIGHUP {
				again = true
				continue
			}
			if r.endNow(sig) {
				return nil, exitFailure
			}
			if stopping {
				continue
			}
			r.log.Info("stopping before start is complete", "signal", sig.String())
			stopping = true
			cancel()
		}
	}
}

// drain shuts the rank down within the configured time, or at once when it is
// ordered again to end.
func (r *runner) drain(server rank) int {
	ctx, cancel := context.WithTimeout(context.Background(), r.loaded.Deadline.Drain.Std())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer fault.Guard()()
		done <- server.Shutdown(ctx)
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				r.log.Error("drain is incomplete: blocks that lustre does not have are in the arena file only", "err", err)
				return exitFailure
			}
			r.log.Info("cascaded ends")
			return exitOK
		case sig := <-r.signals:
			if sig != syscall.SIGHUP && r.endNow(sig) {
				return exitFailure
			}
		}
	}
}

// reload reads every source again. On any error the rank goes on as it was.
func (r *runner) reload(server rank) {
	fresh, password, err := load(r.sources)
	var changed []string
	if err == nil {
		_, changed, err = config.Reload(r.loaded.Config, fresh.Config)
	}
	if err != nil {
		var joined interface{ Unwrap() []error }
		if errors.As(err, &joined) {
			for _, e := range joined.Unwrap() {
				r.log.Error("reload refused, nothing changed", "err", e)
			}
		} else {
			r.log.Error("reload refused, nothing changed", "err", err)
		}
		server.ReloadFailed()
		return
	}
	if password != r.password {
		changed = append(changed, "the password")
	}
	r.loaded, r.password = fresh, password
	r.level.Set(levelOf(fresh.Log.Level))
	server.Reload(fresh.Config, password)
	r.log.Info("reloaded", "changed", changed)
}
