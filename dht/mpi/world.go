//go:build mpi

package mpi

// #cgo linux CFLAGS: -I/usr/lib/x86_64-linux-gnu/openmpi/include
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	gompi "github.com/sbromberger/gompi"
)

// Errors of starting and stopping. Test with errors.Is.
var (
	ErrStarted  = errors.New("mpi: started before; a process has one MPI life")
	ErrFinalize = errors.New("mpi: MPI_Finalize did not return; end the process without it")
)

// The default include folder is that of Debian's Open MPI, as gompi has it.
// Flags in CGO_CFLAGS come before it: see scripts/mpi-build.sh.

// World is this process's MPI. There is one in the life of a process.
type World struct {
	*Comm
	version Version
	thread  string
	calls   chan func() // run on the thread that started MPI
	stop    sync.Once
	stopped error
}

var started sync.Once

// Start sets variables of the environment that MPI reads (settings), starts MPI, compares the world's size with the launcher's and
// duplicates the world communicator, so that no message of ours meets one of
// somebody else. It blocks until all processes of the world are there.
// Errors: ErrStarted, ErrWorldSize, *Error.
func Start() (*World, error) {
	err := ErrStarted
	var w *World
	started.Do(func() {
		w = &World{calls: make(chan func())}
		ready := make(chan error)
		go w.main(ready)
		err = <-ready
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// main owns the thread that starts MPI, because the same one must end it.
func (w *World) main(ready chan<- error) {
	runtime.LockOSThread()
	if err := setUp(os.LookupEnv, os.Setenv); err != nil {
		ready <- err
		return
	}
	gompi.Start(true)
	ready <- w.init()
	for call := range w.calls {
		call()
	}
}

func (w *World) init() error {
	w.version = libraryVersion()
	var level C.int
	C.MPI_Query_thread(&level)
	w.thread = threadLevel(level)
	// Errors that belong to no communicator are raised on the world.
	if err := check("MPI_Comm_set_errhandler", C.cascade_errors_return(C.cascade_world())); err != nil {
		return err
	}
	if err := Launched(os.Getenv).Check(gompi.WorldSize(), w.version.Name); err != nil {
		return err
	}
	w.Comm = &Comm{rank: gompi.WorldRank(), size: gompi.WorldSize()}
	if err := check("MPI_Comm_dup", C.MPI_Comm_dup(C.cascade_world(), &w.c)); err != nil {
		return err
	}
	return check("MPI_Comm_set_errhandler", C.cascade_errors_return(w.c))
}

func libraryVersion() Version {
	var text [C.MPI_MAX_LIBRARY_VERSION_STRING]C.char
	var length C.int
	C.MPI_Get_library_version(&text[0], &length)
	return parseVersion(C.GoStringN(&text[0], length))
}

func threadLevel(level C.int) string {
	switch level {
	case C.MPI_THREAD_SINGLE:
		return "single"
	case C.MPI_THREAD_FUNNELED:
		return "funneled"
	case C.MPI_THREAD_SERIALIZED:
		return "serialized"
	case C.MPI_THREAD_MULTIPLE:
		return "multiple"
	}
	return fmt.Sprintf("level %d", int(level))
}

// Version is the library in use.
func (w *World) Version() Version { return w.version }

// Thread is the thread level that the library granted: "multiple", or less.
func (w *World) Thread() string { return w.thread }

// Barrier waits until all processes are in it, or for ever: it is for starting
// and for tests. It burns a core.
func (w *World) Barrier() {
	done := make(chan struct{})
	w.calls <- func() {
		gompi.NewCommunicator(nil).Barrier()
		close(done)
	}
	<-done
}

// Stop ends MPI, for which all processes of the world must call it. When they
// do not within patience, the error is ErrFinalize: the process should then exit
// at once, and no MPI call may follow. No request may be under way.
func (w *World) Stop(patience time.Duration) error {
	w.stop.Do(func() {
		done := make(chan struct{})
		call := func() {
			gompi.Stop()
			close(done)
		}
		limit := time.After(patience)
		w.stopped = ErrFinalize
		select {
		case w.calls <- call:
		case <-limit:
			return
		}
		select {
		case <-done:
			w.stopped = nil
		case <-limit:
		}
	})
	return w.stopped
}
