// Package simulate computes what one tier would hit of a trace, without bytes: it drives the
// policies of package cascade/policy as the store does, for many policies and
// capacities, and computes the most that any policy could hit.
//
// Glossary
//
//	reference    one block of one request
//	prefix rule  a block is a hit if it and all blocks before it in its request
//	             are in the tier
//	MIN          the offline optimum under that rule: it knows when each block is
//	             asked for next, evicts the leaf that is farthest from that, and
//	             refuses what is farther than all of them
//	spool        the trace in a temporary file, in which blocks are numbered from 0
//	             in the order in which they are first asked for
//
// Run reads the trace once, into the spool. Each policy at each capacity then reads the
// spool by itself, as many at once as there are processors. Memory is by the distinct
// blocks of the trace, and does not grow with its references.
//
// All blocks have one size: a tier's capacity is a number of blocks. The package knows
// nothing of several tiers, of requests that overlap, or of time that requests wait for each other.
package simulate
