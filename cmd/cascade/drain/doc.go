// Package drain has the verb cascade drain, which empties one rank on purpose: the rank
// writes to lustre what only it has, while it serves, and then leaves the ring and ends.
//
// What is written first, and what a rank does at its end, is the rank's own business
// (cascade/writeback, internal/rank). The package does not reach ranks on other nodes: the
// kernel lets a user end a process on the own node only.
package drain
