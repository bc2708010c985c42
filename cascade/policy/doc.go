// Package policy decides which block of one tier leaves next and where it
// goes. It is pure: state and events in, decisions out, no clock and no I/O,
// so that the daemon, the trace replayer and the simulator run it unchanged.
//
// Glossary
//
//	request   one engine request: the blocks of a chain, head first
//	chain     blocks of which each names the one before it as its parent
//	leaf      a block with no child in the same tier and no other hold on it;
//	          only leaves are victims, so eviction never leaves a hole
//	hold      a reason a block may not leave now: a resident child, a reader,
//	          a lease, a write in flight
//	protected blocks that were reused, kept apart from those seen once, in a
//	          share of the tier that is bounded (design.md §5)
//	probation the blocks that are not protected
//	class     blocks that leave before those of the next class, whatever their
//	          age; stamp: the order of accesses, by which age is measured
//	fall      where a victim goes: one memory tier down, or to the cold tier
//
// New gives the policies by name: "prefix" (the default), "lru" and "paper".
// They share one Ranking and differ in what makes a class and in the order in
// which a request touches its blocks.
//
// The package never touches bytes and never learns keys: the caller hands a
// policy numbered nodes and keeps what they stand for.
package policy
