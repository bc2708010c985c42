// Package shm is node DRAM as a tier: one arena file under /dev/shm for each
// rank (CASCADE §III-B, tier 2), which a restarted daemon takes over with its
// blocks intact.
//
// It owns the arena's name and place. How blocks lie in it is tiers/memory;
// what stays in it is cascade/policy.
package shm

import (
	"fmt"
	"os"
	"path/filepath"

	"cascadekv/tiers/memory"
)

// Name is the tier's word in statistics.
const Name = "shm"

// DefaultDir is where Linux keeps POSIX shared memory.
const DefaultDir = "/dev/shm"

// Path returns the arena's file name for a rank of a job of this user in dir.
// The user id keeps users of one node apart, job keeps jobs apart.
func Path(dir, job string, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("cascade-%d-%s-rank%03d.arena", os.Geteuid(), job, rank))
}

// Open opens or takes over the arena file at path, of the given size in bytes.
func Open(path string, bytes int64) (*memory.Tier, error) {
	return memory.Open(memory.Options{Name: Name, Path: path, Bytes: bytes})
}
