// Package shmindex is the shared index: a table in shared memory that shows the
// clients of a rank which names it has and where their blocks lie in the arena,
// so that they can look, and read, without asking. docs/format.md §6 has every byte of it.
//
// Glossary
//
//	table        a memfd that this process alone writes to. It never changes its
//	             size: a larger one replaces it
//	place        of a table: room for one name, in a bucket of eight
//	fingerprint  a hash that stands for a name
//	owner word   the id of a thread of this process, the keeper. The kernel marks
//	             the word when that thread ends, however the process does: so no
//	             client takes the table of a process that is gone for one that is
//	             kept
//	final        of a table: a name that is not in it is nowhere
//	touch ring   a memfd that one client writes to: the places of the names it
//	             read, and notes of what it looked up. What is in it is never
//	             trusted to be more than a hint
//	holds        a memfd that one client writes to as well: which blocks of the
//	             arena it reads in place. Nonsense in it can but keep room from use
//	allowance    the bytes that a client may hold
//
// Reader and Viewer are what clients do, for tests: a Reader looks names up, a
// Viewer holds blocks.
//
// The package does not interpret names, blocks and tiers beyond what is in an
// entry: its caller decides when an entry is true and when it goes.
package shmindex
