package uring

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// What linux/io_uring.h lays down, besides what package abi has of it.
const (
	opNop         = 0
	opReadv       = 1
	opPollAdd     = 6
	opAsyncCancel = 14

	// submissionAsync lets a thread of the kernel begin the operation.
	submissionAsync = 1 << 4

	enterGetEvents = 1 << 0

	setupClamp = 1 << 4

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

// limitWorkers bounds the kernel's threads for reads that it cannot begin
// without waiting. Kernels before 5.15 keep their own bound.
func limitWorkers(fd int, n uint32) {
	workers := [2]uint32{n, 0} // 0 leaves the bound for sockets and the like alone
	unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), registerMaxWorkers, uintptr(unsafe.Pointer(&workers)), 2, 0, 0)
}
