package server

import (
	"os"

	"golang.org/x/sys/unix"

	"cascadekv/internal/memlimit"
)

// threadShare is the part of the threads that the kernel lets this process have
// which connections may hold. The rest is for file systems, the runtime, and other
// programs of the user: Go ends a program that cannot have another thread.
const threadShare = 4

// connectionThreads returns how many connections may wait in the kernel at once:
// maxThreads, or less where processes are limited.
func connectionThreads() int {
	limit := uint64(memlimit.Node{Root: "/"}.Tasks())
	var l unix.Rlimit
	// Root is exempt.
	if os.Geteuid() != 0 && unix.Getrlimit(unix.RLIMIT_NPROC, &l) == nil {
		limit = min(limit, l.Cur)
	}
	return int(min(max(limit/threadShare, 8), maxThreads))
}
