// Package writeback writes dirty blocks to the cold tier: the coldest ones ahead
// of need, all of them in a drain, and those again whose files somebody removed.
// It makes changes of names durable, and computes the ids of blocks that were
// acknowledged before they were hashed (design.md §4), for a block without an id
// does not leave the rank.
//
// One writer at a time holds the token to write. The package does not decide what
// the cold tier keeps: see package coldspace.
package writeback
