// Package mixed makes one fabric of two: the ranks of a world that started together, as
// an MPI world does, reach each other over the world's fabric, and ranks that came later
// over another one that can be joined at any time.
//
// Glossary
//
//	native    a rank of the world: one of its numbers, with the incarnation that all
//	          ranks of the world share
//	guest     any other rank, a process that took over a native's number among them
//
// Requests are answered whichever way they come. The package does not decide who is
// alive, and opens no connection of its own.
package mixed
