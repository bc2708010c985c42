// Package pool bounds the file operations that are in the kernel at once. One that
// hangs cannot be stopped: its caller leaves when its context ends, with an error
// that reports when the caller's memory is no longer touched (Busy). Patience is for
// callers that wait as long as there is progress.
//
// The package does no I/O, and does not decide what is tried: package breaker does.
package pool
