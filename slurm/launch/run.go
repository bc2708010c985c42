package launch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"cascadekv/internal/cli"
)

// Session is one run of an engine beside ranks.
type Session struct {
	Engine  []string // its command; nil: ranks run until a signal ends them
	Env     []string // of the engine
	LMCache string   // the text of Plan.LMCacheFile
	In      io.Reader
	Out     io.Writer
	Err     io.Writer // of the engine, and for progress

	Signals <-chan os.Signal // are passed on to the engine
	Ready   time.Duration    // how long the ranks may take to be one cache
	Grace   time.Duration    // how long the engine may take to end after a signal to do so
	Notice  time.Duration    // how long before the time limit it gets SIGTERM; 0: what it and the ranks may take to end
}

// Exit statuses of an engine that could not be started, as shells have them.
const (
	statusNotRun   = 126
	statusNotFound = 127
	statusSignal   = 128 // and the number of the signal that ended it
)

// Run starts the ranks, runs the engine once they are one cache, and stops them. It
// returns the engine's exit status, and an error for what went wrong with the ranks;
// without an engine's status it is cli.Failure.
func (p *Plan) Run(ctx context.Context, s Session) (status int, err error) {
	progress := func(format string, args ...any) {
		fmt.Fprintf(s.Err, "cascade launch: "+format+"\n", args...)
	}
	if err := p.vacant(); err != nil { // before its files are written over
		return cli.Failure, err
	}
	defer p.note(progress)()
	if err := p.writeFiles(rand.Text(), s.LMCache); err != nil {
		return cli.Failure, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.Dir)) }()
	if p.Size != "" {
		progress("%s", p.Size)
	}
	began := time.Now()
	r, err := p.start()
	if err != nil {
		return cli.Failure, err
	}
	// What ends this function must not keep ranks from draining.
	defer func() { err = errors.Join(err, r.stop(context.WithoutCancel(ctx), progress)) }()
	within, end := context.WithCancel(ctx)
	defer end()
	s.Signals = p.signals(within, s, progress)

	sig, err := p.ready(ctx, r, s, began, progress)
	if err != nil {
		return cli.Failure, fmt.Errorf("%w; the end of %s:\n%s", err, p.Log, r.tail())
	}
	if sig != 0 {
		progress("%v before the ranks were ready", sig)
		return statusSignal + int(sig), nil
	}
	progress("the ranks are one cache after %v; this node's is at %s", time.Since(began).Round(time.Millisecond), p.Config.Socket)
	if p.Place.Job != nil {
		if err := p.whole(); err != nil {
			progress("%v", err)
		}
	}
	if p.Place.Job != nil && p.Config.Lustre.Dir == "" {
		progress("without lustre.dir what the ranks hold ends with the job, and their arenas stay in /dev/shm until cascade arena rm")
	}
	if err := r.find(ctx); err != nil { // known by now, it is not asked for in a hurry
		progress("%v", err)
	}
	if s.Engine == nil {
		return r.hold(s.Signals)
	}
	return r.engine(s, progress), nil
}

// ready waits for the ring, or for a signal that ends the launch.
func (p *Plan) ready(ctx context.Context, r *ranks, s Session, began time.Time, progress func(string, ...any)) (syscall.Signal, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Ready)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.await(ctx, began, progress) }()
	for {
		select {
		case err := <-done:
			return 0, err
		case sig := <-s.Signals:
			if ends(sig) {
				cancel()
				<-done
				return sig.(syscall.Signal), nil
			}
		}
	}
}

// ends reports whether a signal asks a program to end.
func ends(sig os.Signal) bool {
	return sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGQUIT
}

// hold waits for a signal to end, or for the end of the ranks.
func (r *ranks) hold(signals <-chan os.Signal) (int, error) {
	for {
		select {
		case sig := <-signals:
			if ends(sig) {
				return cli.OK, nil
			}
		case <-r.ended:
			return cli.Failure, fmt.Errorf("%w: they have ended", ErrRing)
		}
	}
}

// engine runs the engine and returns its exit status.
func (r *ranks) engine(s Session, progress func(string, ...any)) int {
	cmd := exec.Command(s.Engine[0], s.Engine[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Env, s.In, s.Out, s.Err
	if err := cmd.Start(); err != nil {
		progress("%v", err)
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			return statusNotFound
		}
		return statusNotRun
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the status is in ProcessState
		close(done)
	}()
	ranksEnded := r.ended
	var late <-chan time.Time
	for {
		select {
		case <-done:
			return statusOf(cmd.ProcessState)
		case sig := <-s.Signals:
			// At a terminal the engine has got this one itself.
			if sig != syscall.SIGINT || !cli.IsTerminal(s.In) {
				_ = cmd.Process.Signal(sig) // it may have just ended
			}
			if ends(sig) && late == nil {
				late = time.After(s.Grace)
			}
		case <-late:
			progress("the engine did not end within %v, and is killed", s.Grace)
			_ = cmd.Process.Kill() // it may have just ended
			late = nil
		case <-ranksEnded:
			progress("the ranks have ended; the engine goes on without them, %s has their words", r.plan.Log)
			ranksEnded = nil
		}
	}
}

func statusOf(state *os.ProcessState) int {
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return statusSignal + int(w.Signal())
	}
	return state.ExitCode()
}
