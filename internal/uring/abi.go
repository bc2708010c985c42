package uring

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// What linux/io_uring.h lays down and golang.org/x/sys/unix lacks.
const (
	opNop         = 0
	opReadv       = 1
	opPollAdd     = 6
	opAsyncCancel = 14

	// submissionAsync lets a thread of the kernel begin the operation.
	submissionAsync = 1 << 4

	enterGetEvents = 1 << 0

	setupCQSize = 1 << 3
	setupClamp  = 1 << 4

	// Since Linux 5.5: one mapping for both queues; no completion is lost;
	// what a submission points to is only read during the system call.
	featSingleMmap   = 1 << 0
	featNoDrop       = 1 << 1
	featSubmitStable = 1 << 2
	featNeeded       = featSingleMmap | featNoDrop | featSubmitStable

	offRing        = 0
	offSubmissions = 0x10000000

	registerMaxWorkers = 19
)

// submission is struct io_uring_sqe.
type submission struct {
	opcode uint8
	flags  uint8
	ioprio uint16
	fd     int32
	off    uint64
	addr   uint64
	len    uint32
	rw     uint32
	user   uint64
	_      [3]uint64
}

// completion is struct io_uring_cqe.
type completion struct {
	user  uint64
	res   int32
	flags uint32
}

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32

	_  [3]uint32
	sq struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

func setup(entries uint32, p *params) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	unix.CloseOnExec(int(fd))
	return int(fd), nil
}

// enter hands submissions over and waits for completions. It returns how many
// submissions the kernel took.
func enter(fd int, submit, wait, flags uint32) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), uintptr(submit), uintptr(wait), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// limitWorkers bounds the kernel's threads for reads that it cannot begin
// without waiting. Kernels before 5.15 keep their own bound.
func limitWorkers(fd int, n uint32) {
	workers := [2]uint32{n, 0} // 0 leaves the bound for sockets and the like alone
	unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), registerMaxWorkers, uintptr(unsafe.Pointer(&workers)), 2, 0, 0)
}
