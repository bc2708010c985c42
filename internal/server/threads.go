package server

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// threadShare is the part of the threads that the kernel lets this process have
// which connections may hold. The rest is for file systems, the runtime, and other
// programs of the user: Go ends a program that cannot have another thread.
const threadShare = 4

// connectionThreads returns how many connections may wait in the kernel at once:
// maxThreads, or less where processes are limited.
func connectionThreads() int {
	limit := taskLimit("/")
	var l unix.Rlimit
	// Root is exempt.
	if os.Geteuid() != 0 && unix.Getrlimit(unix.RLIMIT_NPROC, &l) == nil {
		limit = min(limit, l.Cur)
	}
	return int(min(max(limit/threadShare, 8), maxThreads))
}

// taskLimit returns the lowest pids.max of this process's control group and those
// above it, as far as they can be seen below root. Without one it is the largest
// number.
func taskLimit(root string) uint64 {
	limit := ^uint64(0)
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		base := filepath.Join(root, "sys/fs/cgroup")
		switch fields[1] {
		case "": // version 2
		case "pids":
			base = filepath.Join(base, "pids")
		default:
			continue
		}
		for dir := filepath.Clean("/" + fields[2]); ; dir = filepath.Dir(dir) {
			if text, err := os.ReadFile(filepath.Join(base, dir, "pids.max")); err == nil {
				if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil { // "max" is none
					limit = min(limit, n)
				}
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit
}
