package gio

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Errors of this package. Test with errors.Is.
var (
	ErrUnsupported = errors.New("gio: this kernel, or a rule that binds this process, has no io_uring as the engine needs it")
	ErrOption      = errors.New("gio: bad option")
	ErrInvalid     = errors.New("gio: the IOCB can not be issued as it is filled in")
	ErrNoIOCB      = errors.New("gio: too few IOCBs are free: wait for one and release it")
	ErrState       = errors.New("gio: the IOCB is not in the state that this call is for")
	ErrTimeout     = errors.New("gio: the IOCB did not end in time; its IOCB and its memory stay taken until it does")
	ErrCancelled   = errors.New("gio: the IOCB was given up before its event came; none of its I/Os was begun")
	ErrGone        = errors.New("gio: the engine has ended; what is under way may or may not have been done: drop the queue and its memory, and attach again")
	ErrBusy        = errors.New("gio: I/Os are still under way; memory and files stay until they end")
	ErrLayout      = errors.New("gio: this is no region of a layout that this build knows")
	ErrIO          = errors.New("gio: I/Os failed")
)

// IOError is an IOCB of which some I/Os failed; it is an ErrIO. Nothing may be
// assumed of the memory or of the part of the file of those that failed.
type IOError struct {
	ID     uint32 // of the IOCB
	Failed int    // how many IOCTXs; IOCB.Failed has which
	First  int    // one of them
	Errno  unix.Errno
	Bytes  int // that its I/O came to, of a short one; Errno is 0 then
}

// Error implements error.
func (e *IOError) Error() string {
	if e.Errno != 0 {
		return fmt.Sprintf("gio: %d I/Os of IOCB %d failed: IOCTX %d: %v", e.Failed, e.ID, e.First, e.Errno)
	}
	return fmt.Sprintf("gio: %d I/Os of IOCB %d failed: IOCTX %d came to %d bytes", e.Failed, e.ID, e.First, e.Bytes)
}

// Unwrap makes the error an ErrIO, and one of its errno.
func (e *IOError) Unwrap() []error {
	if e.Errno != 0 {
		return []error{ErrIO, e.Errno}
	}
	return []error{ErrIO}
}
