// Package policy decides which block of one tier leaves next and where it
// goes. It is pure: state and events in, decisions out, no clock and no I/O,
// so that the daemon, the trace replayer and the simulator run it unchanged.
//
// Glossary
//
//	leaf       a block with no child in the same tier and no other hold on it;
//	           only leaves are victims, so eviction never leaves a hole
//	ghost block  one that has left and is remembered, by fingerprint, a bounded
//	           number
//	class      of a Ranking: blocks with an order of their own; of prefix: what was
//	           known of a block when it was used last
//	age group  of prefix: blocks of a class that were used last at about the same time, and
//	           age together
//	hazard     the chance that a block that was not used for some time is used next
//	worth      of a block: the chance that it is used, by the time that it is to be
//	           kept for that
//
// New gives the policies by name; Names are those that the daemon offers, the default
// first. "prefix" learns hazards, and gives up what is worth least. The others share
// one Ranking and differ in what makes a class and in how a request changes it.
//
// The package never touches bytes and never learns keys: the caller hands a
// policy numbered nodes and keeps what they stand for.
package policy
