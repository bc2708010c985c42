// Package shm is node DRAM as a tier: one arena file under /dev/shm for each
// rank (CASCADE §III-B, tier 2), which a restarted daemon takes over with its
// blocks intact.
//
// It owns the arena's name and place. How blocks lie in it is tiers/memory;
// what stays in it is cascade/policy.
package shm
