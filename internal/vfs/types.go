package vfs

import "golang.org/x/sys/unix"

// Types that statfs reports, beside those that the unix package names.
const (
	LustreType = 0x0BD00BD0
	GPFSType   = 0x47504653
	BeeGFSType = 0x19830326
)

// types are the file systems that somebody has something to say about.
var types = map[uint32]string{
	LustreType:                 "Lustre",
	unix.TMPFS_MAGIC:           "tmpfs",
	unix.HUGETLBFS_MAGIC:       "hugetlbfs",
	unix.RAMFS_MAGIC:           "ramfs",
	unix.EXT4_SUPER_MAGIC:      "ext4",
	unix.XFS_SUPER_MAGIC:       "xfs",
	unix.BTRFS_SUPER_MAGIC:     "btrfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay",
	unix.NFS_SUPER_MAGIC:       "NFS",
	unix.CEPH_SUPER_MAGIC:      "Ceph",
	unix.AFS_SUPER_MAGIC:       "AFS",
	unix.CIFS_SUPER_MAGIC:      "CIFS",
	unix.SMB2_SUPER_MAGIC:      "SMB2",
	unix.V9FS_MAGIC:            "9P",
	GPFSType:                   "GPFS",
	BeeGFSType:                 "BeeGFS",
}

// TypeName is what people call a file system of the type that statfs reports;
// "" when it is none of those known here.
func TypeName(fsType uint32) string { return types[fsType] }
