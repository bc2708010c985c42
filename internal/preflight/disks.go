package preflight

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cascadekv/internal/config"
	"cascadekv/internal/units"
	"cascadekv/internal/vfs"
)

// nvme checks the directories of the tier on local disks, and lists the node's disks.
func (m Machine) nvme(c *config.Config) Check {
	const name = "nvme"
	for _, dir := range c.NVMe.Paths {
		if found := m.disk(name, dir, c); found.Verdict != OK {
			return found
		}
	}
	used := ""
	switch {
	case len(c.NVMe.Paths) > 0:
		used = c.NVMe.Bytes.String() + " in " + strings.Join(c.NVMe.Paths, ", ") + ", " + writes(c.NVMe.MaxWrite) + "; "
	case c.NVMe.Bytes > 0:
		return Warning(name, "name a directory on each disk in nvme.paths, or leave nvme.bytes out", "nvme.bytes is %v, and without nvme.paths no disk is used", c.NVMe.Bytes)
	}
	found, _ := filepath.Glob(m.path("/sys/class/nvme/nvme*")) // the pattern is valid
	if len(found) == 0 {
		return Okay(name, "%sno device", used)
	}
	disks := make([]string, len(found))
	for i, dir := range found {
		model, _ := os.ReadFile(filepath.Join(dir, "model")) // without it the name is enough
		disks[i] = strings.TrimSpace(filepath.Base(dir) + " " + strings.TrimSpace(string(model)))
	}
	return Okay(name, "%s%d device(s): %s", used, len(found), strings.Join(disks, ", "))
}

// writes describes the limit of writes.
func writes(most units.Bytes) string {
	if most == 0 {
		return "written without a limit"
	}
	return "written with at most " + most.String() + " a second"
}

// shared are file systems that other nodes see.
var shared = []uint32{
	vfs.LustreType, vfs.GPFSType, vfs.BeeGFSType, unix.NFS_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC,
	unix.SMB2_SUPER_MAGIC, unix.V9FS_MAGIC,
}

// disk checks one directory of nvme.paths.
func (m Machine) disk(name, dir string, c *config.Config) Check {
	there := existing(dir)
	if there != dir && there != filepath.Dir(dir) {
		return Failure(name, "mkdir -p "+filepath.Dir(dir), "%s: the directory above it does not exist", dir)
	}
	if err := writable(there); err != nil {
		return Failure(name, "check owner and mode: ls -ld "+there, "%s cannot be written: %v", there, err)
	}
	s, err := m.statfs(there)
	if err != nil {
		return Failure(name, "is the file system mounted on this node?", "%s: %v", there, err)
	}
	magic, kind := fsType(s)
	_, free := capacity(s)
	part := uint64(c.NVMe.Bytes) / uint64(len(c.NVMe.Paths))
	switch room := free + poolBytes(dir); {
	case slices.Contains(shared, magic):
		return Warning(name, "name a directory on a disk of the node", "%s is on %s, which other nodes share", dir, kind)
	case magic == unix.TMPFS_MAGIC || magic == unix.RAMFS_MAGIC:
		return Warning(name, "name a directory on a disk of the node, or set shm.bytes higher", "%s is on %s: it competes for memory", dir, kind)
	case room < part:
		return Warning(name, "free some space, or set nvme.bytes lower", "%s has room for %s, its part of nvme.bytes is %s", dir, size(room), size(part))
	}
	return Okay(name, "")
}

// poolBytes is what a pool in dir takes already.
func poolBytes(dir string) (bytes uint64) {
	files, _ := filepath.Glob(filepath.Join(dir, "pool-*")) // the pattern is valid but for names with brackets, whose pool then counts as none
	for _, f := range files {
		bytes += allocated(f)
	}
	return bytes
}
