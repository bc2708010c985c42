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
//
// Left out on purpose, because they do not work, or not alike, on a parallel
// file system (reference/lustre.md A3): append mode, mmap, locks, truncation,
// hole punching and fsync of directories.
//
// The package does not retry, buffer, or interpret errors: callers get the
// errno and decide.
package vfs
