// Package eviction makes room: in memory tiers for blocks, and on the heap for
// names. Which block leaves is the policy's choice; how it leaves follows from
// where else it is (CASCADE Algorithm 1, lines 4 to 11): it is dropped, copied to
// the next memory tier, or waits until the cold tier has it.
//
// Above a memory level that the process can not address, such as a disk, victims are
// copied down ahead of need.
//
// The package does not write to the cold tier: it asks package writeback to, by
// flags of residency.State.
package eviction
