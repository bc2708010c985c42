// Package stats measures how a trace reuses its blocks: how many distinct other
// blocks and how much time lie between two touches of a block, how many blocks
// are touched once, and how many are in use over time.
//
// A prompt touches its blocks head first, each once. The reuse distance of a
// touch is the number of distinct other blocks touched since the touch before
// it, so an LRU cache of more blocks than that still has the block; its reuse
// age is the time since then.
//
// The package reads a trace once, in memory that grows with the number of
// distinct blocks, sessions and windows, not of requests. It simulates no cache:
// internal/replay does.
package stats
