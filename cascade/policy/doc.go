// Package policy decides which block of one tier leaves next and where it
// goes. It is pure: state and events in, decisions out, no clock and no I/O,
// so that the daemon, the trace replayer and the simulator run it unchanged.
//
// Glossary
//
//	leaf       a block with no child in the same tier and no other hold on it;
//	           only leaves are victims, so eviction never leaves a hole
//	protected  of blocks: reused, and so kept longer than those seen once, in a
//	           bounded part of the tier: without a bound, and without age,
//	           history that nobody asks for any more fills it
//	probation  the blocks that are not protected
//	class      blocks that leave before those of the next class, whatever their
//	           age, which is measured in accesses
//
// New gives the policies by name: "prefix" (the default), "lru" and "paper".
// They share one Ranking and differ in what makes a class and in the order in
// which a request touches its blocks.
//
// The package never touches bytes and never learns keys: the caller hands a
// policy numbered nodes and keeps what they stand for.
package policy
