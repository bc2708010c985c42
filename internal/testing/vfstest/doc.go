// Package vfstest is file systems for tests, all of them a vfs.FS: Fault, whose
// operations fail or hang by rule; Trace, which writes every operation down in
// order; Bounded, which has room for so many bytes; and Crash, in memory, which
// loses at a power cut what a Lustre loses.
//
// The package does not judge what their users do.
package vfstest
