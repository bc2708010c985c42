// Package fabricbench compares reads between two ranks with the same transfers
// in C: over MPI (bench/c/fabric.c), or over TCP on loopback (bench/c/loop.c).
// Both sides are pairs of processes that take commands as lines of text. The
// package does not judge its figures.
//
// Glossary
//
//	world  a pair of ranks, ours or those in C, that were started together
//	pair   the programs of both worlds
//	slot   a piece of a rank's memory that one read fills
package fabricbench
