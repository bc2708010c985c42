// Package vfs is the seam between code that keeps files and the file system
// below it: the few operations that such code needs, and one implementation over
// Linux. internal/testing/vfstest has others for tests.
//
// Glossary
//
//	FS      operations on paths
//	File    operations on one open file, all positioned
//	hook    a function asked before each operation of a wrapped FS
//	Direct  an FS whose files go past the page cache (O_DIRECT)
//	Scratch memory outside the Go heap for what Direct must move to align it
//
// Some things only some files can do: read into several buffers with one call
// (Vectored), go past the page cache (Director), drop what was cached
// (Forgetter), have another descriptor (Duplicator). Each has an interface of its own and, where it makes sense, a
// function that does without.
//
// Calls wait for a file system that hangs as long as it does; Within is for who does not.
//
// Left out on purpose, because they do not work, or not alike, on a parallel
// file system: append mode, mmap, locks, truncation,
// hole punching and fsync of directories.
//
// The package does not retry, buffer, or interpret errors: callers get the
// errno and decide.
package vfs
