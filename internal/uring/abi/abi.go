package abi

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetupCQSize in Params.Flags: CQEntries has how many completions there is room for.
const SetupCQSize = 1 << 3

// Params is struct io_uring_params: what is asked of a ring, and what it came to be.
type Params struct {
	SQEntries, CQEntries, Flags, SQThreadCPU, SQThreadIdle, Features, WQFD uint32

	_  [3]uint32
	SQ struct { // offsets
		Head, Tail, Mask, Entries, Flags, Dropped, Array, _ uint32
		Memory                                              uint64 // of the submissions, if the caller brings it
	}
	CQ struct { // offsets
		Head, Tail, Mask, Entries, Overflow, Completions, Flags, _ uint32
		Memory                                                     uint64 // of both queues, if the caller brings it
	}
}

// Setup makes a ring for so many submissions, and returns its descriptor, closed on exec. Errors: the
// kernel's, an unix.Errno.
func Setup(entries uint32, p *Params) (fd int, err error) {
	n, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	unix.CloseOnExec(int(n))
	return int(n), nil
}

// Enter hands submissions over, waits for completions, or wakes the kernel's thread, as flags say. It
// returns how many submissions the kernel took. Errors: the kernel's, an unix.Errno.
func Enter(fd int, submit, wait, flags uint32) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), uintptr(submit), uintptr(wait), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
