// Package block is the vocabulary every layer shares: what a block is, how it
// is identified and which facts travel with it.
//
// Glossary
//
//	block        the KV bytes of a fixed run of tokens, immutable once stored:
//	             key bytes, then value bytes
//	ID           the address of a block: a prefix of SHA-256 over its bytes
//	             (CASCADE §III-A)
//	provisional  the address of a block whose bytes have arrived but whose
//	             digest is not computed yet (design.md §4); local to one rank
//	Info         what must be known about a block to store and verify it
//	Name         the entry (namespace, key) → block, with its chain position
//
// The package computes and compares; it stores nothing, knows no tier and does
// no I/O.
package block
