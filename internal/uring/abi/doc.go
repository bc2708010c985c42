// Package abi has what linux/io_uring.h lays down and golang.org/x/sys/unix
// lacks, as far as more than one package wants it: internal/uring, which reads
// files, and gpu/gio, whose rings a device fills.
//
// Glossary
//
//	offset  where the kernel has put a field, in bytes from the start of the
//	        memory that holds both queues
//
// The package does not map memory, know entries of the queues, or wait.
package abi
