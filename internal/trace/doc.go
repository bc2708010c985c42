// Package trace reads, writes, summarises and synthesises prefix-hash traces
// in Mooncake's JSON Lines form, reads other forms too (docs/traces.md), and
// derives the bytes of a block from its hash id.
//
// Glossary
//
//	hash id  a number that stands for one block and everything before it: two
//	         prompts share a hash id exactly when they share that prefix
//	assumed  what a reader took for granted where a trace leaves something open;
//	         what has several meanings is refused instead
//
// The package knows nothing of stores, tiers, keys or sockets: internal/replay
// drives those with what is read here.
package trace
