// Package sharedindex serves clients that look names up, and read blocks, without
// asking: it keeps the table of internal/shmindex in step with the names, takes in
// what clients report of their look-ups and reads, and keeps what they hold where it is
// (docs/format.md §6).
//
// The package does not look at other ranks: what they have is not in the table.
package sharedindex
