// Package tiers defines what a place for block bytes is. The store (cascade/)
// decides which block lives where; a tier only keeps, returns and forgets
// bytes, and says precisely what went wrong.
//
// Glossary
//
//	tier    a place for block bytes: shm, host (a stand-in for HBM), lustre
//	memory  a tier whose bytes can be read in place and filled in place
//	pin     a hold on one block's bytes: while it lasts they neither move nor
//	        change
//	slot    memory reserved for a block that is still arriving; invisible
//	        until it is committed
//	recover hand over what an earlier incarnation left behind
//
// The sub-packages adapt what lies below (internal/arena, lustre/segment) to
// these interfaces. tiertest holds the one conformance suite that each of them
// passes. This package has the interfaces; no tier evicts by itself, follows
// names or knows policy.
package tiers
