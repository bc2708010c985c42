// Package writeback writes dirty blocks to the cold tier: the coldest ones ahead
// of need, all of them in a drain, and those again whose files somebody removed.
// It makes changes of names durable, and finalizes ids: a put by name is
// acknowledged when its bytes are in the arena, for SHA-256 takes longer than their
// way there, and its id is computed later, before the block leaves the rank.
//
// One writer at a time holds the token to write. The package does not decide what
// the cold tier keeps: see package coldspace.
package writeback
