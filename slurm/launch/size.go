package launch

import (
	"fmt"
	"math"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cascadekv/internal/config"
	"cascadekv/internal/memlimit"
	"cascadekv/internal/units"
	"cascadekv/slurm/job"
)

// bound is so many bytes, and of what, as the end of a sentence.
type bound struct {
	bytes units.Bytes
	of    string
}

// memoryOf is what a job may use on each node: the least of what Slurm was asked for, of what the
// control groups here allow and, where there are other components, of what they have. Where no
// limit is known it is what this node has available, for others may use it too.
func memoryOf(j *job.Job, n memlimit.Node) bound {
	least := bound{bytes: math.MaxInt64}
	lower := func(bytes int64, of string) {
		if bytes > 0 && units.Bytes(bytes) < least.bytes {
			least = bound{units.Bytes(bytes), of}
		}
	}
	lower(j.Memory, "of memory that Slurm gives the job on a node")
	for _, c := range j.Components {
		lower(c.Memory, "of memory that Slurm gives a component of the job on a node")
	}
	limit := n.Limit()
	lower(limit.Bytes, "of memory that control group "+limit.Group+" allows")
	if least.of == "" {
		available, err := n.Available()
		if err != nil {
			available = memlimit.Machine()
		}
		lower(available, "of memory that this node has available")
	}
	return least
}

// roomOf is the size of the file system that an arena is in. Where it has no limit, or is not
// there, which the rank reports, it is more than there can be.
func roomOf(path string) bound {
	dir := filepath.Dir(path)
	b := bound{math.MaxInt64, "of " + dir}
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) == nil && fs.Blocks > 0 {
		b.bytes = units.Bytes(min(fs.Blocks*uint64(fs.Bsize), math.MaxInt64))
	}
	return b
}

// choose decides how large the arena of a rank is that shall share memory and room with an engine:
// half of the memory, the tier above it included, and at most three quarters of the room, for
// engines have shared memory too. why says so.
func choose(memory, room bound, host units.Bytes) (bytes units.Bytes, why string) {
	bytes, why = memory.bytes/2-host, fmt.Sprintf("half of the %s %s", memory.bytes.Human(), memory.of)
	if host > 0 {
		why += ", without host.bytes"
	}
	if most := room.bytes / 4 * 3; most < bytes {
		bytes, why = most, fmt.Sprintf("three quarters of the %s %s", room.bytes.Human(), room.of)
	}
	return max(config.MinShm, bytes/units.MiB*units.MiB), why
}

// size adds shm.bytes to flags where nobody has set it, and refuses one that the node of a job can
// not hold. Whether as much is free now is left to the ranks: they serve with what there is.
func (p *Plan) size(flags map[string]string, n memlimit.Node) error {
	c := &p.Config.Config
	memory, room := memoryOf(p.Place.Job, n), roomOf(c.Shm.Path)
	bytes, why := choose(memory, room, c.Host.Bytes)
	if p.Config.Origin("shm.bytes") == config.Built {
		flags["shm.bytes"] = bytes.String()
		p.Size = fmt.Sprintf("each rank's arena has %s, %s; set shm.bytes for another size", bytes.Human(), why)
		return nil
	}
	for _, b := range []bound{memory, room} {
		if c.Shm.Bytes > b.bytes {
			return p.Config.Refuse("shm.bytes", fmt.Sprintf("it is more than all of the %s %s", b.bytes.Human(), b.of),
				fmt.Sprintf("leave it out for %s, or ask for more (sbatch --mem)", bytes))
		}
	}
	return nil
}
