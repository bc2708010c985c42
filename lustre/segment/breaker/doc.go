// Package breaker keeps operations away from files and servers that do not answer:
// FS is a file system that asks a circuit breaker before each read, and notes what
// became of reads and writes.
//
// Glossary
//
//	circuit  what is known of the answers of one file, or of all reads or writes; it
//	         is broken while they are not tried
//	hanging  an operation that has been in the kernel for long
//	refusal  the error of an operation that was not tried
//
// The package does not end an operation that hangs, which nobody can, does not
// retry, and refuses no write by itself: a caller asks MayWrite before it begins.
package breaker
