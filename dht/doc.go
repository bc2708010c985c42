// Package dht makes many ranks one store: which rank a key belongs to, where
// the block it names lies, and how its bytes come here (design.md §6).
//
// Glossary
//
//	node       this package's part of one rank
//	home       the ranks that keep a key's directory entry: a primary and its
//	           replicas, as the ring says
//	statement  what a rank says of one of its names: see dht/directory
//	view       the members and the ring a node goes by at one moment
//	settle     the time after a change of the ring in which entries move to
//	           their new homes, and the old ones are still asked
//
// A node publishes what its rank stores to the homes, locates keys there with
// one message per home, and reads blocks out of their owners' memory. Below it
// lie
//
//	ring/       maps keys to homes
//	directory/  the table a home keeps
//	members/    who is alive; whoever wires a rank up passes its events on
//	fabric/     messages and payloads: mpi/, tcp/, sim/
//
// The package does not decide what is stored, copied or evicted, keeps no block
// bytes, and does not read the shared file system: a copy there is a place it
// passes on.
package dht
