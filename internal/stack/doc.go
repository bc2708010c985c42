// Package stack spares goroutines that call deeply the growth of their stacks by
// steps. A goroutine begins with a small stack, which is copied to one of twice
// the size each time it is too small, with all frames that are on it by then.
//
// The package does not know how deep a goroutine will call: it gives what those
// that read from files need.
package stack
