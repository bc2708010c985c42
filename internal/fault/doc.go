// Package fault ends a process in good order when it touches memory that is gone:
// a mapped file that somebody truncated. The kernel answers such a touch with
// SIGBUS, which ends a Go program unless the goroutine asked for a panic.
//
// Each goroutine that touches such memory begins with
//
//	defer fault.Guard()()
//
// and the program sets with Handle what is to happen. The package does not know
// which memory may be gone, and mends nothing: what the goroutine had begun is not
// finished, its locks may be held for ever.
//
// Glossary
//
//	fault  a touch of mapped memory that the kernel has nothing for
//	guard  have a goroutine panic at a fault, and its panics go to the handler
package fault
