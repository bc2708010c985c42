// Package shm is node DRAM as a tier: one arena file under /dev/shm for each
// rank (CASCADE §III-B, tier 2), which a restarted daemon takes over with its
// blocks intact.
//
// The package owns the arena's name and place, and nothing else: how blocks lie in
// it is tiers/memory, what stays in it is cascade/policy. Its words are those of
// tiers/memory.
package shm
