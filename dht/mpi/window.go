//go:build mpi

package mpi

// #include "shim.h"
import "C"

import "errors"

// Window is memory of every process that the others read with Set.Rget.
type Window struct{ w C.MPI_Win }

// NewWindow exposes b, mapped memory that outlives the window, and opens the
// windows of all others for reading. All processes call it together. Where the
// library has no windows on this network the error is an *Error, in all of them.
func (c *Comm) NewWindow(b []byte) (*Window, error) {
	w := &Window{}
	code := C.MPI_Win_create(address(b), C.MPI_Aint(len(b)), 1, C.MPI_INFO_NULL, c.c, &w.w)
	if err := check("MPI_Win_create", code); err != nil {
		return nil, err
	}
	if err := check("MPI_Win_set_errhandler", C.cascade_win_errors_return(w.w)); err != nil {
		return nil, err
	}
	return w, check("MPI_Win_lock_all", C.MPI_Win_lock_all(C.MPI_MODE_NOCHECK, w.w))
}

// Flush waits until all that was started on a process's window is done. It can
// take for ever: Set.Test does not.
func (w *Window) Flush(rank int) error {
	return check("MPI_Win_flush", C.MPI_Win_flush(C.int(rank), w.w))
}

// Sync makes what this process wrote to its own window visible to the others.
func (w *Window) Sync() error { return check("MPI_Win_sync", C.MPI_Win_sync(w.w)) }

// Free ends the window. All processes call it together, with nothing under way.
func (w *Window) Free() error {
	return errors.Join(
		check("MPI_Win_unlock_all", C.MPI_Win_unlock_all(w.w)),
		check("MPI_Win_free", C.MPI_Win_free(&w.w)))
}
