// Package dht makes many ranks one store: which rank a key belongs to, where
// the block it names lies, and how its bytes come here.
//
// Glossary
//
//	node       this package's part of one rank
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
