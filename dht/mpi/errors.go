//go:build mpi

package mpi

// #include "shim.h"
import "C"

import "fmt"

// Error is an MPI error code. MPI calls of this package return it where MPI
// itself would have ended the job.
type Error struct {
	Op    string // the MPI function
	Code  int    // as the library gave it
	Class int    // its portable class
	Text  string // the library's own words
}

// Error names the function and the library's words.
func (e *Error) Error() string {
	return fmt.Sprintf("mpi: %s: %s (code %d, class %d)", e.Op, e.Text, e.Code, e.Class)
}

// check turns a return code into an error.
func check(op string, code C.int) error {
	if code == C.MPI_SUCCESS {
		return nil
	}
	var text [C.MPI_MAX_ERROR_STRING]C.char
	var length, class C.int
	C.MPI_Error_string(code, &text[0], &length)
	C.MPI_Error_class(code, &class)
	return &Error{op, int(code), int(class), C.GoStringN(&text[0], length)}
}
