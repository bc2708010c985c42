// Package simulate computes what one tier, or a ladder of levels, would hit of a trace, without
// bytes: it drives the policies of package cascade/policy as the store does, for many policies and
// capacities, and computes the most that any policy could hit in one tier.
//
// Glossary
//
//	reference    one block of one request
//	prefix rule  a block is a hit if it and all blocks before it in its request
//	             are in the tier
//	MIN          the offline optimum under that rule: it knows when each block is
//	             asked for next, evicts the leaf that is farthest from that, and
//	             refuses what is farther than all of them
//	ladder       levels, fastest first, each with a policy and a room of its own: a
//	             victim of one goes to the next, and what hits there comes up
//	spool        the trace in a temporary file, in which blocks are numbered from 0
//	             in the order in which they are first asked for
//
// Run and RunLadders read the trace once, into the spool. Each policy at each capacity, and each
// ladder, then reads the spool by itself, as many at once as there are processors. Memory is by the distinct
// blocks of the trace, and does not grow with its references.
//
// All blocks have one size: a tier's capacity is a number of blocks. The package knows
// nothing of requests that overlap, of levels that several ranks share unevenly, or of prices.
package simulate
