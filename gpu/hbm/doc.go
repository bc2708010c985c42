// Package hbm is a memory tier in the memory of a GPU: a pool of fixed units, taken
// from the driver at once, in which a block has as many as it needs, anywhere.
//
// Glossary
//
//	unit    the piece in which the pool is given out; as large as most blocks
//	copier  a stream with pinned host memory of its own: one copy at a time
//	direct  of a copy: between the device and registered host memory of the
//	        caller, without the copier's memory between them
//
// The process never touches device memory. Bytes come in and go out by the copy
// engine, one call for all units of a piece; checksums and ids are computed of the
// copy in host memory. Host memory that is given to Open as the arena is registered
// once, and copies from and to it are direct; all else goes by way of a copier, piece
// by piece.
//
// A copy that was begun ends when the driver has ended it. Its caller waits that long
// where the copy is direct, for the device could still write into the caller's
// memory; where it goes by way of a copier the caller's context ends the wait, and
// the copier and the units stay taken until the copy has ended. A context that the
// driver reports as lost takes all blocks with it: every call returns
// tiers.ErrUnavailable from then on.
//
// The arena must not lose pages while the tier is open: no hole is punched into it
// and nothing else remaps it. The package does not decide which blocks it has, makes
// no context, and does not share its memory with other processes.
package hbm
