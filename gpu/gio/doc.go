// Package gio is a ring of batched I/O that a device starts by a store to memory
// and follows by loads from it: Tutti's gio_uring over the kernel's io_uring. The
// CPU prepares batches ahead of time; between the start of one and its end no
// user-space CPU takes part. docs/gio.md has the layout and the order of memory.
//
// Glossary
//
//	IOCB         a batch of I/Os in one direction, with its own rings; it has an index
//	IOCTX        one I/O of an IOCB: a scatter entry, a file's offset, a length
//	SQ, CQ       of a queue: indexes of IOCBs that start, and that ended
//	ring region  the memfd that has all of it; a second one has the data
//	event word   a word of the ring region whose value an IOCB waits for
//	I/O engine   what serves the I/Os: the kernel, or threads of this process
//	device       what starts IOCBs and sees them end: a GPU, or a thread instead
//	host         the CPU's side of the client: InitQueue or Attach, and Queue's methods
//	doorman      the goroutine that wakes the kernel's thread, which no device can
//
// Duties
//
//	Serve    makes a region, opens an engine over files and data memory, and hands
//	         both memfds to clients over unix sockets.
//	Queue    GetIOCB, IssueIO, WaitCQE: Tutti's names.
//	Device   what a GPU does, on a CPU: loads and stores, no system call.
//	PTX      the same as a program for a GPU, with a warp for each IOCB.
//
// Whoever maps a region can write anything into it at any time. The engine
// copies an entry once, checks the copy, and touches no memory but the data and
// no file but those that it was given. An I/O that never ends keeps its IOCB, its
// part of the data memory, and the region alive; waits for it end at their
// deadline.
//
// The package does no allocation of files or data memory, verifies no data, and
// does not decide when an IOCB is to start: that is for stores and schedulers
// above. It loads no program into a GPU: whoever has the driver does.
package gio
