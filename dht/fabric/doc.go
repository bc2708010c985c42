// Package fabric is how bytes travel between ranks: small messages with an
// answer (Call), and block payloads read out of another rank's arena (Read).
//
// Glossary
//
//	call         a small request and its answer
//	read         a payload, copied from a region of another rank into the
//	             caller's memory
//
// The interface has four implementations, each in a folder of its own: mpi
// (build tag mpi), tcp, mixed, which is both of them for ranks of an MPI world and
// others beside it, and sim for tests and for the scale simulator.
// internal/testing/fabrictest holds the one conformance suite that all of them pass.
//
// The package, and what implements it, does not decide who is alive
// (dht/members), where a key lives (dht/ring) or what a message means (package
// dht), and retries nothing.
package fabric
