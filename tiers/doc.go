// Package tiers defines what keeps block bytes: a Tier, of one of two kinds, each
// one whole interface.
//
//	Memory  hands out slots to fill and pins to read: /dev/shm, host memory, HBM
//	Files   is written and read in batches, merges, and is shared by ranks: Lustre
//
// Glossary
//
//	recover  hand over what an earlier incarnation left behind
//
// The store (cascade/) decides which block lives where; a tier only keeps, returns
// and forgets bytes, and reports precisely what went wrong. The package does not
// evict by itself, follow names or have a policy.
//
// Plain and Private have the answers of a simple tier of each kind, to be embedded.
// internal/testing/tiertest is the conformance suite that each tier passes.
package tiers
