// Package fabricbench compares reads between two ranks with the same transfers
// in C: over MPI (bench/c/fabric.c), or over TCP on loopback (bench/c/loop.c).
// Both sides are pairs of processes that take commands as lines of text. Two
// worlds of two ranks run, ours and that of the C program, and take turns.
// The package does not judge its figures.
package fabricbench
