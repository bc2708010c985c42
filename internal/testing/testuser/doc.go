// Package testuser lets a test act as another user of the machine: connect, listen,
// or whatever else one thread can do.
//
// It changes the effective user of one thread, which ends with what it was changed
// for: no other goroutine ever runs as that user. A test that is not run by root is
// skipped, and fails under CI=true, as testneed has it.
//
// The package does not change groups, nor the real user.
package testuser
