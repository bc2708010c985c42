// Package fabric is how bytes travel between ranks: small messages with an
// answer (Call), and block payloads read out of another rank's arena (Read).
//
// Glossary
//
//	rank         one cascaded of the job, by number
//	incarnation  one life of a rank's process; a restarted rank has a larger one
//	call         a small request and its answer
//	read         a payload, copied from a region of another rank into the
//	             caller's memory
//	region       memory that a rank lets others read, by number: its arenas
//	generation   one stay of a block at one place in a region; a read that names
//	             another generation than the one that is there now is stale
//	hold         the serving side's pin of the bytes while they are sent
//
// The interface has three implementations, each in a folder of its own: mpi
// (build tag mpi), tcp, and sim for tests and for the scale simulator.
// fabrictest holds the one conformance suite that all of them pass.
//
// The package, and what implements it, does not decide who is alive
// (dht/members), where a key lives (dht/ring) or what a message means (package
// dht), and retries nothing.
package fabric
