package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/nvme"
	"cascadekv/internal/arena"
	"cascadekv/internal/config"
	"cascadekv/internal/memlimit"
	"cascadekv/internal/units"
	"cascadekv/internal/vfs"
)

func fsType(s unix.Statfs_t) (magic uint32, name string) {
	magic = uint32(s.Type)
	name = vfs.TypeName(magic)
	if name == "" {
		name = fmt.Sprintf("file system 0x%08X", magic)
	}
	return magic, name
}

func capacity(s unix.Statfs_t) (total, free uint64) {
	return s.Blocks * uint64(s.Bsize), s.Bavail * uint64(s.Bsize)
}

func (m Machine) sharedMemory(c *config.Config) Check {
	const name = "shared memory"
	dir, need := filepath.Dir(c.Shm.Path), uint64(c.Shm.Bytes)
	s, err := m.statfs(dir)
	if err != nil {
		return noStart(Failure(name, "create it, or choose another shm.path", "%s: %v", dir, err))
	}
	magic, kind := fsType(s)
	total, free := capacity(s)
	room := free + allocated(c.Shm.Path)
	switch {
	case total > 0 && total < need: // 0: a tmpfs without a limit
		return Failure(name, atMost(c.Shm.Bytes, min(total, room), "mount -o remount,size=… "+dir+" (in a container: --shm-size)"),
			"%s has %s in all, shm.bytes is %s", dir, size(total), c.Shm.Bytes)
	case total > 0 && room < need:
		return Failure(name, atMost(c.Shm.Bytes, room, "remove what other processes left: ls -l "+dir),
			"%s has %s free, shm.bytes is %s", dir, size(free), c.Shm.Bytes)
	case magic != unix.TMPFS_MAGIC && magic != unix.HUGETLBFS_MAGIC && magic != unix.RAMFS_MAGIC:
		return Warning(name, "choose a shm.path below /dev/shm", "%s is on %s: every put writes to a disk", c.Shm.Path, kind)
	}
	own := ""
	if job := m.ownMount(dir); job != "" {
		own = "; it is that of job " + job + " alone (job_container/tmpfs): arenas end with the job, and before that the launcher rescues what killed ranks left"
	}
	return Okay(name, "%s has %s free of %s, shm.bytes is %s%s", dir, size(free), size(total), c.Shm.Bytes, own)
}

// ownMount returns the number of the Slurm job that has a file system of its own at dir; "" for the node's. In the
// mount namespace of job_container/tmpfs something of its base directory, BasePath/JOB/.JOB, is mounted for that job,
// and at dir there are two file systems, of which the second hides the node's.
func (m Machine) ownMount(dir string) (job string) {
	text, err := os.ReadFile(m.path("proc/self/mountinfo"))
	if err != nil {
		return ""
	}
	mounts := 0
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // id, parent, device, root, mount point
		if len(fields) < 5 {
			continue
		}
		if fields[4] == dir {
			mounts++
		}
		if of := containerRoot.FindStringSubmatch(fields[3]); of != nil && of[1] == of[2] {
			job = of[1]
		}
	}
	if mounts < 2 {
		return ""
	}
	return job
}

var containerRoot = regexp.MustCompile(`/(\d+)/\.(\d+)(?:/|$)`)

// atMost is the remedy for an arena that does not fit into room bytes: a value
// of shm.bytes that does, where there is one, or another remedy.
func atMost(configured units.Bytes, room uint64, other string) string {
	fits := units.Bytes(min(room, uint64(configured))) / units.MiB * units.MiB
	if fits < config.MinShm {
		return other
	}
	return fmt.Sprintf("set shm.bytes (--shm-bytes) to at most %s, or %s", fits, other)
}

// hugePages tries whether the arena would lie in huge pages.
func (m Machine) hugePages(c *config.Config) Check {
	const name = "huge pages"
	dir := filepath.Dir(c.Shm.Path)
	switch err := m.tryHuge(dir); {
	case errors.Is(err, arena.ErrNoHugePages):
		return Warning(name, "use Linux 6.1 or newer, or have root mount -o remount,huge=advise "+dir+"; if that is so, memory is in too small pieces just now",
			"files in %s lie in small pages: large blocks are copied at two thirds of the speed", dir)
	case err != nil:
		return Warning(name, "", "not tried: %v", err)
	}
	return Okay(name, "files in %s can lie in them", dir)
}

// allocated is the space a file takes already; 0 if there is none.
func allocated(path string) uint64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Blocks) * 512
	}
	return 0
}

// overhead is what a rank may use besides its tiers: code, names, buffers.
const overhead = 256 * units.MiB

// Least memory limits, in bytes: of one under which a rank can live, and of the
// reserve.
const (
	leastLimit   = 64 * units.MiB
	leastReserve = 32 * units.MiB
)

// reserve is what a rank keeps for itself of a limit of memory: its overhead, and
// less under a small limit, where it has fewer names and clients.
func reserve(limit int64) int64 {
	return max(int64(leastReserve), min(int64(overhead), limit/4))
}

// Left returns how many more bytes the tiers of this process may take, at least
// 0, and what bounds them, for memory.Options.
func (m Machine) Left() (left int64, of string) {
	node := memlimit.Node{Root: m.root}
	kept := reserve(node.Limit().Bytes)
	left, of = node.Left()
	return max(0, left-kept), fmt.Sprintf("%s, beyond %d that the rank keeps for itself", of, kept)
}

// nvmeBuffers is the host memory of the tier on local disks.
func nvmeBuffers(c *config.Config) units.Bytes {
	if len(c.NVMe.Paths) == 0 {
		return 0
	}
	return nvme.Buffers * c.NVMe.FileBytes
}

// memory compares the tiers with the job's limit and with what the node has.
func (m Machine) memory(c *config.Config) Check {
	const name, ask = "memory", "ask for more: sbatch --mem, or the memory limit of the container"
	node := memlimit.Node{Root: m.root}
	tiers := uint64(c.Shm.Bytes + c.Host.Bytes + nvmeBuffers(c))
	limit := node.Limit()
	need := tiers + uint64(overhead)
	if limit.Bytes < int64(leastLimit) {
		return noStart(Failure(name, ask, "the limit of control group %s is %s, and a rank needs %s at least", limit.Group, size(uint64(limit.Bytes)), leastLimit))
	}
	if uint64(limit.Bytes) < need {
		fits := max(0, limit.Bytes-reserve(limit.Bytes)-int64(c.Host.Bytes+nvmeBuffers(c)))
		return Failure(name, atMost(c.Shm.Bytes, uint64(fits), ask),
			"the limit of control group %s is %s; the tiers and overhead need %s", limit.Group, size(uint64(limit.Bytes)), size(need))
	}
	has, err := node.Available()
	available := uint64(has)
	if err != nil {
		return Warning(name, "", "%v", err)
	}
	if available+allocated(c.Shm.Path) < need {
		return Warning(name, "set shm.bytes lower, or stop something else on this node",
			"%s available; the tiers and overhead need %s", size(available), size(need))
	}
	if limit.Group == "" {
		return Okay(name, "%s available, no control-group limit, %s needed", size(available), size(need))
	}
	return Okay(name, "%s available, control-group limit %s, %s needed", size(available), size(uint64(limit.Bytes)), size(need))
}

// lustre checks the directory of the cold tier.
func (m Machine) lustre(c *config.Config) Check {
	const name = "lustre"
	dir := c.Lustre.Dir
	if dir == "" {
		return Warning(name, "set lustre.dir (--lustre-dir)", "none configured: what shm gives up is gone, and nothing outlives the job")
	}
	s, err := m.statfs(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := writable(existing(dir)); err != nil {
			return Failure(name, "mkdir -p "+dir, "%s does not exist, and this user cannot make it: %v", dir, err)
		}
		return Okay(name, "%s does not exist yet: the rank makes it", dir)
	} else if err != nil {
		return Failure(name, "is the file system mounted on this node?", "%s: %v", dir, err)
	}
	if err := writable(dir); err != nil {
		return Failure(name, "check owner, mode and quota: ls -ld "+dir+"; lfs quota "+dir, "%s cannot be written: %v", dir, err)
	}
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return Warning(name, "chmod o-w "+dir+", or share it by lustre.group", "anybody can rename and remove what is in %s", dir)
	}
	magic, kind := fsType(s)
	_, free := capacity(s)
	switch segment := uint64(c.Lustre.SegmentBytes); {
	case free < segment:
		return Failure(name, "free some space, or set lustre.segment_bytes lower", "%s has %s free, one segment takes %s", dir, size(free), c.Lustre.SegmentBytes)
	case free < 10*segment:
		return Warning(name, "free some space, or set lustre.segment_bytes lower", "%s has %s free, less than ten segments of %s", dir, size(free), c.Lustre.SegmentBytes)
	case magic == unix.TMPFS_MAGIC || magic == unix.RAMFS_MAGIC:
		return Warning(name, "choose a directory on a shared file system", "%s is on %s: it competes for memory and ends with the node", dir, kind)
	case magic != vfs.LustreType:
		return Okay(name, "%s is writable, on %s rather than Lustre, %s free", dir, kind, size(free))
	}
	return Okay(name, "%s is writable, on Lustre, %s free", dir, size(free))
}

// existing returns dir, or what there is of it.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// writable makes a file in dir, writes to it and removes it.
func writable(dir string) (err error) {
	f, err := os.CreateTemp(dir, ".cascade-doctor-")
	if err != nil {
		return err
	}
	_, err = f.WriteString("doctor\n")
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}
