// Package handover is what a daemon passes to the program that takes its place in
// the same process (exec): which descriptors are whose, and what each
// connection was promised. The byte layout is docs/format.md §7.
//
// Glossary
//
//	state   all of it, as one value
//	claim   a range of the arena that a client reads or fills at this moment
//	write   put a state into a sealed memfd
//	pass    leave the memfd and the descriptors open across exec
//	take    the other side of both
//
// The descriptors in a state are numbers: the package checks that they can be
// descriptors and that none is named twice, its user what they stand for.
// The package decides nothing, and knows no socket and no store.
package handover
