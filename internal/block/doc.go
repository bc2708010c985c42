// Package block is the vocabulary every layer shares: what a block is, how it
// is identified and which facts travel with it.
//
// Glossary
//
//	ID           the address of a block: a prefix of SHA-256 over its bytes
//	             (CASCADE §III-A)
//	Info         what must be known about a block to store and verify it
//	Name         the entry (namespace, key) → block, with its chain position
//
// The package computes and compares; it stores nothing, knows no tier and does
// no I/O.
package block
