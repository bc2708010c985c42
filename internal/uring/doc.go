// Package uring reads files through the kernel's io_uring: many reads under way
// at once without a thread for each.
//
// Glossary
//
//	submission  an entry of the first queue: do this
//	completion  an entry of the second queue: this came of it
//	bell        wakes the driver
//
// Duties
//
//	Open   makes a ring and proves with an operation that it works. A kernel
//	       without it, or that forbids it (seccomp, io_uring_disabled), is
//	       ErrUnsupported: the caller reads in another way then.
//	Readv  reads once, like preadv(2), and returns when the kernel no longer
//	       touches the buffers.
//	Close  ends what can be ended. What cannot keeps the ring alive until it
//	       ends by itself: the kernel still writes into its buffers.
//
// An operation whose context ends is cancelled. The kernel can cancel what has
// not begun or waits; a read that hangs in a file system stays, and so does the
// caller of Readv: who must not wait calls it from a goroutine.
//
// The package knows reads alone: no writes, no polling threads, no registered
// buffers. It never touches the bytes.
package uring
