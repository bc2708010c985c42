// Package names is the chain graph of one rank: which names there are, which
// block each stands for, which chain it continues, when it ends, and who was
// promised that it stays.
//
// The package is pure: it has no clock, no lock, no tiers and no log. An operation of a
// Graph changes the graph and appends what follows from that for others to the
// graph's list of changes, in the order in which it must be carried out. The
// owner takes changes from the list with Next, after each operation, and
// applies them to tiers, policies, the shared index, the event log and the
// publisher. Levels are numbers, 0 the fastest memory tier; the holds that a graph
// counts are children in a level, and leases.
package names
