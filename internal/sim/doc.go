// Package sim runs the distributed store at a scale that no test machine has:
// hundreds of ranks in one process, each with the real node of package dht on
// the real ring and directory, over dht/fabric/sim. It counts what a get costs,
// how even the load is, and what moves when a rank joins or dies.
//
// Glossary
//
//	get      locate a name from a rank that does not have it, read the block
//	         and compare every byte
//	message  one call of a node, with its answer
//	hop      a message or a read that a get waits for
//	load     gets of random names, and blocks that move, while the ranks change
//	update   an owner states to the homes that a block lies elsewhere now
//	settled  every rank's directory holds exactly the names it is a home of
//	unknown  a name that a living rank has and a settled get does not find
//
// Only a rank's store is a model: a table of names over memory that all ranks
// of the simulation share. What is measured is counted, not timed; the seconds
// in a result are those of all ranks on one machine and say nothing about a
// cluster. Deadlines of calls are long here for the same reason. Nodes share
// the rings they would each compute for themselves.
//
// The package simulates no policy, no tiers and no shared file system.
package sim
