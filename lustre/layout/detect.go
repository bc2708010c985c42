package layout

import (
	"cascadekv/internal/vfs"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Info is what the file system of a path is.
type Info struct {
	Lustre  bool
	Type    uint32 // f_type of statfs
	Name    string // of the Lustre file system: "scratch"; "" elsewhere or when unknown
	Version string // of Lustre's client on this machine; "" elsewhere or when it does not say
}

// Detect looks at the file system of a path that exists. On Lustre it may wait
// for the servers.
func Detect(path string) (Info, error) {
	const root = "/" // where /sys and /proc hang
	var s unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(path, &s) }); err != nil {
		return Info{}, pathErr("statfs", path, err)
	}
	i := Info{Type: uint32(s.Type), Lustre: uint32(s.Type) == vfs.LustreType}
	if i.Lustre {
		i.Version, i.Name = clientVersion(root), fileSystem(path, root)
	}
	return i, nil
}

// clientVersion reads the version of the kernel module: "2.15.5", in
// releases before 2.13 among other lines.
func clientVersion(root string) string {
	for _, name := range []string{"sys/fs/lustre/version", "proc/fs/lustre/version"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			version, found := strings.CutPrefix(line, "lustre:")
			if !found && strings.Contains(line, ":") {
				continue
			}
			if version = strings.TrimSpace(version); version != "" {
				return version
			}
		}
	}
	return ""
}

// fileSystem is the name of the Lustre file system that path is on, out of the
// source of its mount ("10.0.0.1@o2ib:/scratch/users"); "" when it is not found.
func fileSystem(path, root string) string {
	var st unix.Stat_t
	text, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil || unix.Lstat(path, &st) != nil {
		return ""
	}
	return mountedName(string(text), fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
}

// mountedName finds the mount of a device, "major:minor".
func mountedName(mountinfo, device string) string {
	for line := range strings.Lines(mountinfo) {
		before, after, found := strings.Cut(line, " - ")
		fields, source := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 3 || fields[2] != device || len(source) < 2 || source[0] != "lustre" {
			continue
		}
		if at := strings.Index(source[1], ":/"); at >= 0 {
			name, _, _ := strings.Cut(source[1][at+2:], "/")
			return name
		}
	}
	return ""
}

// poolMembers lists the OSTs of a pool of the file system that path is on, nil
// when there is no such pool. known is false when this client does not say.
func poolMembers(path, pool, root string) (members []int, known bool) {
	name := fileSystem(path, root)
	if name == "" {
		return nil, false
	}
	for _, base := range []string{"proc/fs/lustre/lov", "sys/fs/lustre/lov", "sys/kernel/debug/lustre/lov"} {
		dirs, err := filepath.Glob(filepath.Join(root, base, name+"-clilov-*", "pools"))
		if err != nil || len(dirs) == 0 {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dirs[0], pool))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, true
		}
		return ostIndices(string(text)), err == nil
	}
	return nil, false
}

// ostIndices reads lines such as "scratch-OST000a_UUID". It is not nil.
func ostIndices(text string) []int {
	list := []int{}
	for line := range strings.Lines(text) {
		_, hex, found := strings.Cut(strings.TrimSuffix(strings.TrimSpace(line), "_UUID"), "-OST")
		if n, err := strconv.ParseUint(hex, 16, 32); found && err == nil {
			list = append(list, int(n))
		}
	}
	return list
}
