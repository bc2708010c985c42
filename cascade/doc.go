// Package cascade is the store: it decides where every block's bytes live, and
// moves them between tiers with CASCADE's two algorithms (Put: Algorithm 1, Get:
// Algorithm 2). What blocks are called is in cascade/names, whose changes
// apply.go carries out.
//
// Glossary
//
//	block       immutable KV bytes, addressed by BlockID
//	chain       names linked by parent; a prompt is one chain
//	ref count   live names that point to a block
//	stage       room for a block that is still arriving
//	view        a block pinned for reading in place
//	arena       the file in which a memory tier lies, for other processes to map
//	keep        hold a view or stage for as long as a client likes
//	resident    in a memory tier of this rank, and staying there
//	dirty       in memory only: not yet in the cold tier
//	demote      move a victim one tier down; promote: copy a hit one tier up
//	fetch       a block on its way to a get, from the cold tier or another rank
//	part        blocks of one request that the cold tier reads together
//	finalize    compute the id of a block that was acknowledged before it was
//	            hashed (design.md §4)
//
// The package does not know sockets or configuration files, reads the clock only
// through its options, and keeps no block bytes of its own.
package cascade
