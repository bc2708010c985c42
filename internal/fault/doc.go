// Package fault ends a process in good order when it touches memory that is gone:
// a mapped file that somebody truncated. The kernel answers such a touch with
// SIGBUS, which ends a Go program unless the goroutine asked for a panic.
//
// Each goroutine that touches such memory begins with
//
//	defer fault.Guard()()
//
// and the program says with Handle what is to happen. The package does not know
// which memory may be gone, and mends nothing: what the goroutine had begun is not
// finished, its locks may be held for ever.
package fault
