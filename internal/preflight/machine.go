package preflight

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cascadekv/internal/arena"
	"cascadekv/internal/config"
	"cascadekv/internal/descriptors"
	"cascadekv/internal/units"
)

// Machine is the node that is checked. Its methods are safe for concurrent use.
type Machine struct {
	root     string   // where /proc, /sys, /dev and /etc hang
	env      []string // as of os.Environ
	uid      int
	statfs   func(path string) (unix.Statfs_t, error)
	rlimit   func(resource int) (unix.Rlimit, error)
	uname    func() (unix.Utsname, error)
	lookPath func(program string) (string, error)
	tryHuge  func(dir string) error // as arena.TryHugePages
	tryRing  func() error           // makes an io_uring, and gives it back
	synced   func() (bool, error)   // whether the clock is kept right
	run      func(ctx context.Context, program string, args ...string) (string, error)
}

// Here returns the node that this process runs on. env is as of os.Environ.
func Here(env []string) Machine {
	return Machine{
		root: "/", env: env, uid: os.Getuid(), lookPath: exec.LookPath, tryHuge: arena.TryHugePages, tryRing: tryRing, synced: synced,
		statfs: func(path string) (s unix.Statfs_t, err error) { err = unix.Statfs(path, &s); return s, err },
		rlimit: func(r int) (l unix.Rlimit, err error) { err = unix.Getrlimit(r, &l); return l, err },
		uname:  func() (u unix.Utsname, err error) { err = unix.Uname(&u); return u, err },
		run: func(ctx context.Context, program string, args ...string) (string, error) {
			out, err := exec.CommandContext(ctx, program, args...).Output()
			return string(out), err
		},
	}
}

func (m Machine) path(p string) string { return filepath.Join(m.root, p) }

func (m Machine) getenv(name string) string {
	for _, v := range m.env {
		if text, ok := strings.CutPrefix(v, name+"="); ok {
			return text
		}
	}
	return ""
}

// leastKernel is that of the oldest distributions still in use on clusters
// (RHEL 8 and its kin).
const leastKernelMajor, leastKernelMinor = 4, 18

func (m Machine) kernel() Check {
	u, err := m.uname()
	if err != nil {
		return Warning("kernel", "", "uname: %v", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return Warning("kernel", "", "release %q is not a version", release)
	}
	if major < leastKernelMajor || major == leastKernelMajor && minor < leastKernelMinor {
		return Warning("kernel", fmt.Sprintf("use %d.%d or newer", leastKernelMajor, leastKernelMinor), "Linux %s is older than CASCADE is made for", release)
	}
	return Okay("kernel", "Linux %s %s", release, runtime.GOARCH)
}

func (m Machine) openFiles(c *config.Config) Check {
	want := descriptors.Want(c.MaxConnections, c.Socket != "", c.Lustre.Dir != "", c.Peers.Fabric != "off")
	need := descriptors.Needed(want)
	l, err := m.rlimit(unix.RLIMIT_NOFILE)
	if err != nil {
		return Warning("open files", "", "getrlimit: %v", err)
	}
	if l.Max < need {
		return Warning("open files", fmt.Sprintf("ulimit -Hn %d, LimitNOFILE= in a unit, or a lower max_connections", need),
			"the hard limit is %d, max_connections = %d and all else needs %d: %v", l.Max, c.MaxConnections, need, descriptors.Divide(l.Max, want))
	}
	return Okay("open files", "limit %s, %d needed", limitText(l.Max), need)
}

func (m Machine) lockedMemory() Check {
	l, err := m.rlimit(unix.RLIMIT_MEMLOCK)
	if err != nil {
		return Warning("locked memory", "", "getrlimit: %v", err)
	}
	limit := "unlimited"
	if l.Max != unix.RLIM_INFINITY {
		limit = size(l.Max)
	}
	if l.Max != unix.RLIM_INFINITY && len(m.gpus()) > 0 {
		return Warning("locked memory", "ulimit -l unlimited, LimitMEMLOCK=infinity, or PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
			"limit %s: GPU transfers need pinned memory", limit)
	}
	return Okay("locked memory", "limit %s", limit)
}

func limitText(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}

// socketDir checks the directory of the unix socket, or the nearest one above
// it that exists.
func (m Machine) socketDir(socket string) Check {
	const name = "socket"
	if socket == "" {
		return Okay(name, "none configured")
	}
	if len(socket) > config.MaxSocketPath {
		return Failure(name, "use a shorter path", "%s has %d bytes, the kernel takes %d", socket, len(socket), config.MaxSocketPath)
	}
	dir := filepath.Dir(socket)
	if st, err := os.Lstat(dir); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		if owner := st.Sys().(*syscall.Stat_t).Uid; int(owner) != m.uid && owner != 0 {
			return noStart(Failure(name, "choose another --socket", "%s is a symbolic link of uid %d, who can make it lead elsewhere", dir, owner))
		}
	}
	dir = existing(dir)
	info, err := os.Stat(dir)
	if err != nil {
		return noStart(Failure(name, "choose another --socket", "%v", err))
	}
	if !info.IsDir() {
		return noStart(Failure(name, "choose another --socket", "%s is not a directory", dir))
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return noStart(Failure(name, "choose another --socket, or mkdir it with write permission", "%s: %v", dir, err))
	}
	if mode := info.Mode(); mode.Perm()&0o022 != 0 && mode&fs.ModeSticky == 0 {
		return Warning(name, "chmod go-w "+dir, "%s may be written by others, who could put their own socket there", dir)
	}
	if info.Mode().Perm()&0o022 != 0 && dir == filepath.Dir(socket) {
		return Warning(name, "choose a --socket in a directory of your own; the rank makes one that does not exist",
			"all users share %s: another one could serve %s before the rank does, and clients that do not look who serves it would send their password there", dir, socket)
	}
	return Okay(name, "%s (%d of %d bytes)", socket, len(socket), config.MaxSocketPath)
}

func (m Machine) slurm() Check {
	if job := m.getenv("SLURM_JOB_ID"); job != "" {
		return Okay("slurm", "job %s, node %s of %s", job, m.getenv("SLURM_NODEID"), m.getenv("SLURM_JOB_NUM_NODES"))
	}
	if _, err := m.lookPath("srun"); err == nil {
		return Okay("slurm", "installed; not inside a job")
	}
	return Okay("slurm", "none")
}

func (m Machine) mpi() Check {
	for _, program := range []string{"mpirun", "mpiexec"} {
		if path, err := m.lookPath(program); err == nil {
			return Okay("mpi", "%s", path)
		}
	}
	return Okay("mpi", "none")
}

func size(n uint64) string { return units.Bytes(min(n, 1<<63-1)).Human() }
