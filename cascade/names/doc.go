// Package names is the chain graph of one rank: which names there are, which
// block each stands for, which chain it continues, when it ends, and who was
// promised that it stays.
//
// The package is pure: it has no clock, no lock, no tiers and no log. An operation of a
// Graph changes the graph and appends what follows from that for others to the
// graph's list of changes, in the order in which it must be carried out. The
// owner takes changes from the list with Next, after each operation, and
// applies them to tiers, policies, the shared index, the event log and the
// publisher.
//
// Glossary
//
//	name      (namespace, key) → block, with the key of its parent
//	node      a name, or the placeholder of a parent that is not stored
//	level     a memory tier, by its place in the ladder; 0 is the fastest
//	hold      a reason for a block to stay in a level: a child there, a lease
//	lease     a promise, with owner and deadline, that a name stays readable
//	put stamp the Seq of the put that a name, or what it is a copy of, came with
package names
