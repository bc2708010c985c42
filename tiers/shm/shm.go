package shm

import (
	"fmt"
	"os"
	"path/filepath"

	"cascadekv/tiers"
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
// held are ranges of it that clients still use, see tiers.Memory.
func Open(path string, bytes int64, held ...tiers.HeldRange) (*memory.Tier, error) {
	return memory.Open(memory.Options{Name: Name, Path: path, Bytes: bytes, Held: held})
}
