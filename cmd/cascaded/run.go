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
	"sync"
	"time"

	"cascadekv/internal/config"
	"cascadekv/internal/fault"
	"cascadekv/internal/rank"
	"cascadekv/internal/rank/program"
	"cascadekv/slurm/job"
	"cascadekv/slurm/notes"
	"cascadekv/tiers/shm"
)

// openTimeout is how long an opening that was called off is waited for: it may wait
// for a file system that does not answer.
const openTimeout = 5 * time.Second

// run lives as long as the rank and returns the exit status. With rescues the rank is one, alone, that takes over an
// arena, if there is one, drains, and ends.
func run(ctx context.Context, s config.Sources, p program.Program, rescues bool, signals <-chan os.Signal, stderr io.Writer) int {
	loaded, password, err := rank.Load(s)
	if err != nil {
		fmt.Fprintf(stderr, "cascaded: %v\n", strings.ReplaceAll(err.Error(), "\n", "\ncascaded: "))
		return exitUsage
	}
	if rescues {
		awaitRank(loaded, signals)
		if _, err := os.Stat(loaded.Shm.Path); errors.Is(err, os.ErrNotExist) {
			fmt.Fprintf(stderr, "cascaded: nothing is left at %s\n", loaded.Shm.Path)
			return exitOK
		}
		loaded.Peers = config.Default().Peers
	}
	level := new(slog.LevelVar)
	level.Set(levelOf(loaded.Log.Level))
	log := newLogger(loaded.Config, level, stderr)
	logStart(log, loaded)
	o := rank.RunOptions{
		Sources: s, Loaded: loaded, Password: password, Signals: signals, Log: log, Rescue: rescues,
		Reloaded: func(l *config.Loaded) { level.Set(levelOf(l.Log.Level)) },
		Open: func(ctx context.Context, c config.Config, password string) (rank.Running, error) {
			return open(ctx, rank.Options{Config: c, Password: password, SlurmJob: uint64(job.Here(os.Getenv)), Program: p, Log: log})
		},
	}
	if p.State == nil { // what an earlier program had must be drained
		o.OpenTimeout = openTimeout
	}
	defer noteSocket(loaded.Socket, log)()
	if rank.Run(ctx, o) != nil {
		return exitFailure
	}
	return exitOK
}

const (
	// rankMargin is what a rank takes at its end besides its drain.
	rankMargin = 20 * time.Second
	// rankPoll is how often it is looked for.
	rankPoll = 100 * time.Millisecond
)

// awaitRank waits until no rank has the arena that is to be rescued: that one drains is known to nobody but its step,
// which Slurm may have lost. A rank that does not end keeps it, and a signal ends the wait.
func awaitRank(c *config.Loaded, signals <-chan os.Signal) {
	late := time.After(c.Deadline.Drain.Std() + rankMargin)
	for shm.InUse(c.Shm.Path) {
		select {
		case <-time.After(rankPoll):
		case <-late:
			return
		case <-signals:
			return
		}
	}
}

// noteSocket notes the socket of a rank in a Slurm job for its epilog, until the function that it returns is called.
func noteSocket(path string, log *slog.Logger) (forget func()) {
	id := job.Here(os.Getenv)
	if id == 0 || path == "" {
		return func() {}
	}
	forget, err := notes.Add(notes.Dir(os.Geteuid()), id, path)
	if err != nil {
		log.Info("the epilog of the job will not find the socket if this rank is killed", "socket", path, "err", err)
		return func() {}
	}
	return forget
}

func logStart(log *slog.Logger, loaded *config.Loaded) {
	changed := []any{}
	for _, k := range config.Keys() {
		if origin := loaded.Origin(k.Path); origin != config.Built {
			changed = append(changed, slog.String(k.Path, k.Text(&loaded.Config)+" ("+origin+")"))
		}
	}
	log.Info("cascaded starts", "pid", os.Getpid(), "go", runtime.Version(), slog.Group("config", changed...))
	for _, w := range loaded.Warnings {
		log.Warn(w)
	}
}

// open makes the rank of this process, which begins anew when its arena is lost.
func open(ctx context.Context, o rank.Options) (rank.Running, error) {
	o.ArenaLost = restartOnce(o)
	o.HandleFaults = func(faulted func(any) error) {
		fault.Handle(func(panicked any) {
			if err := faulted(panicked); err != nil {
				o.ArenaLost(err)
			}
			panic(panicked)
		})
	}
	r, err := rank.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// restartOnce returns a function that starts this program anew in the same process,
// or, if it can not begin again, ends it. Any number of goroutines may call it, with
// whatever locks: it takes none of the rank's, and does not return.
func restartOnce(o rank.Options) func(error) {
	var once sync.Once
	return func(why error) {
		once.Do(func() {
			o.Log.Error("arena file was truncated or overwritten by another program: what only it had is lost, clients are disconnected, and the rank begins anew", "err", why)
			if o.Config.Peers.Fabric == "mpi" { // which can not be started twice in a process
				os.Exit(exitFailure)
			}
			err := o.Program.Restart()
			o.Log.Error("the rank can not begin anew: it ends", "program", o.Program.Path, "err", err)
			os.Exit(exitFailure)
		})
		select {} // another goroutine is at it
	}
}
