package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cascadekv/internal/arena"
	"cascadekv/internal/config"
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

func (m machine) sharedMemory(c *config.Config) check {
	const name = "shared memory"
	dir, need := filepath.Dir(c.Shm.Path), uint64(c.Shm.Bytes)
	s, err := m.statfs(dir)
	if err != nil {
		return failure(name, "create it, or choose another shm.path", "%s: %v", dir, err)
	}
	magic, kind := fsType(s)
	total, free := capacity(s)
	held := allocated(c.Shm.Path)
	smaller := fmt.Sprintf("set shm.bytes (--shm-bytes) below %s", size(free+held))
	switch {
	case total < need:
		return failure(name, smaller+", or mount -o remount,size=… "+dir+" (in a container: --shm-size)",
			"%s has %s in all, shm.bytes is %s", dir, size(total), c.Shm.Bytes)
	case free+held < need:
		return failure(name, smaller+", or remove what other processes left: ls -l "+dir,
			"%s has %s free, shm.bytes is %s", dir, size(free), c.Shm.Bytes)
	case magic != unix.TMPFS_MAGIC && magic != unix.HUGETLBFS_MAGIC && magic != unix.RAMFS_MAGIC:
		return warning(name, "choose a shm.path below /dev/shm", "%s is on %s: every put writes to a disk", c.Shm.Path, kind)
	}
	return okay(name, "%s has %s free of %s, shm.bytes is %s", dir, size(free), size(total), c.Shm.Bytes)
}

// hugePages tries whether the arena would lie in huge pages.
func (m machine) hugePages(c *config.Config) check {
	const name = "huge pages"
	dir := filepath.Dir(c.Shm.Path)
	switch err := m.tryHuge(dir); {
	case errors.Is(err, arena.ErrNoHugePages):
		return warning(name, "use Linux 6.1 or newer, or have root mount -o remount,huge=advise "+dir+"; if that is so, memory is in too small pieces just now",
			"files in %s lie in small pages: large blocks are copied at two thirds of the speed", dir)
	case err != nil:
		return warning(name, "", "not tried: %v", err)
	}
	return okay(name, "files in %s can lie in them", dir)
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

// overhead is what a rank uses besides its tiers: code, names, buffers.
const overhead = 256 * units.MiB

// memory compares the tiers with the job's limit and with what the node has.
func (m machine) memory(c *config.Config) check {
	const name = "memory"
	need := uint64(c.Shm.Bytes + c.Host.Bytes + overhead)
	limit, group := m.cgroupLimit()
	if limit < need {
		return failure(name, "ask the batch system for more (sbatch --mem), or set shm.bytes lower",
			"the limit of control group %s is %s; shm, host and overhead need %s", group, size(limit), size(need))
	}
	available, err := m.memAvailable()
	if err != nil {
		return warning(name, "", "%v", err)
	}
	if available+allocated(c.Shm.Path) < need {
		return warning(name, "set shm.bytes lower, or stop something else on this node",
			"%s available; shm, host and overhead need %s", size(available), size(need))
	}
	if group == "" {
		return okay(name, "%s available, no control-group limit, %s needed", size(available), size(need))
	}
	return okay(name, "%s available, control-group limit %s, %s needed", size(available), size(limit), size(need))
}

// cgroupLimit is the least memory limit of the control groups this process is
// in, and the group that sets it; "" and the largest number when none does.
func (m machine) cgroupLimit() (limit uint64, group string) {
	limit = ^uint64(0)
	membership, err := os.ReadFile(m.path("/proc/self/cgroup"))
	if err != nil {
		return limit, ""
	}
	for line := range strings.SplitSeq(strings.TrimSpace(string(membership)), "\n") {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 {
			continue
		}
		base, file := "/sys/fs/cgroup", "memory.max"
		if fields[1] == "memory" {
			base, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if fields[1] != "" {
			continue
		}
		for at := filepath.Clean("/" + fields[2]); ; at = filepath.Dir(at) {
			text, err := os.ReadFile(m.path(filepath.Join(base, at, file)))
			if n, bad := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil && n < limit && n < 1<<62 {
				limit, group = n, at
			}
			if at == "/" {
				break
			}
		}
	}
	return limit, group
}

func (m machine) memAvailable() (uint64, error) {
	f, err := os.Open(m.path("/proc/meminfo"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var kib uint64
		if n, _ := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable line")
}

// lustre checks the directory of the cold tier.
func (m machine) lustre(c *config.Config) check {
	const name = "lustre"
	dir := c.Lustre.Dir
	if dir == "" {
		return warning(name, "set lustre.dir (--lustre-dir)", "none configured: what shm gives up is gone, and nothing outlives the job")
	}
	s, err := m.statfs(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return failure(name, "mkdir -p "+dir, "%s does not exist", dir)
	} else if err != nil {
		return failure(name, "is the file system mounted on this node?", "%s: %v", dir, err)
	}
	if err := writable(dir); err != nil {
		return failure(name, "check owner, mode and quota: ls -ld "+dir+"; lfs quota "+dir, "%s cannot be written: %v", dir, err)
	}
	magic, kind := fsType(s)
	_, free := capacity(s)
	switch segment := uint64(c.Lustre.SegmentBytes); {
	case free < segment:
		return failure(name, "free some space, or set lustre.segment_bytes lower", "%s has %s free, one segment takes %s", dir, size(free), c.Lustre.SegmentBytes)
	case free < 10*segment:
		return warning(name, "free some space, or set lustre.segment_bytes lower", "%s has %s free, less than ten segments of %s", dir, size(free), c.Lustre.SegmentBytes)
	case magic == unix.TMPFS_MAGIC || magic == unix.RAMFS_MAGIC:
		return warning(name, "choose a directory on a shared file system", "%s is on %s: it competes for memory and ends with the node", dir, kind)
	case magic != vfs.LustreType:
		return okay(name, "%s is writable, on %s rather than Lustre, %s free", dir, kind, size(free))
	}
	return okay(name, "%s is writable, on Lustre, %s free", dir, size(free))
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
