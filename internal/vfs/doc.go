// Package vfs is the seam between code that keeps files and the file system
// below it: the few operations that such code needs, one implementation over
// Linux and wrappers for tests that make operations fail, hang or leave a
// trace.
//
// Glossary
//
//	FS      operations on paths
//	File    operations on one open file, all positioned
//	hook    a function asked before each operation of a wrapped FS
//	Fault   an FS whose operations fail or hang by rule
//	Trace   an FS that writes every operation down in order
//	Crash   an FS in memory that loses at a power cut what a Lustre loses
//	Direct  an FS whose files go past the page cache (O_DIRECT)
//	Scratch memory outside the Go heap for what Direct must move to align it
//
// Some things only some files can do: read into several buffers with one call
// (Vectored), go past the page cache (Director), drop what was cached
// (Forgetter). Each has an interface of its own and, where it makes sense, a
// function that does without.
//
// Left out on purpose, because they do not work, or not alike, on a parallel
// file system: append mode, mmap, locks, truncation,
// hole punching and fsync of directories.
//
// The package does not retry, buffer, or interpret errors: callers get the
// errno and decide.
package vfs
