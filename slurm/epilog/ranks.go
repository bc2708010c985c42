package epilog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/slurm/job"
)

// program begins the name of a rank's program; one with an MPI may have an ending.
const program = "cascaded"

// mostEnviron bounds what is read of a process's environment, in bytes.
const mostEnviron = 8 << 20

// process is one that was found; its descriptor stays its own when its number is another's.
type process struct{ pid, fd int }

type processes []process

// find lists the ranks of a job among the processes that proc lists. A process that has just
// ended, or can not be looked at, is none.
func find(proc string, j Job) (found processes, err error) {
	names, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		pid, err := strconv.Atoi(filepath.Base(name))
		if err != nil || pid == os.Getpid() {
			continue
		}
		// The descriptor first: it is of the process that is looked at after, or of one that
		// has ended.
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ENOSYS) {
			return found, fmt.Errorf("epilog: ranks that outlived the job are not looked for: %w: it takes Linux 5.3", err)
		}
		if err != nil {
			continue
		}
		if !isRank(name, j) || ended(fd, 0) {
			unix.Close(fd)
			continue
		}
		found = append(found, process{pid, fd})
	}
	return found, nil
}

// isRank reports whether the process of a directory is a cascaded of the job and its user.
func isRank(dir string, j Job) bool {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil || int(st.Uid) != j.UID {
		return false
	}
	exe, err := os.Readlink(filepath.Join(dir, "exe"))
	if err != nil || !strings.HasPrefix(filepath.Base(exe), program) {
		return false
	}
	f, err := os.Open(filepath.Join(dir, "environ"))
	if err != nil {
		return false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostEnviron))
	if err != nil {
		return false
	}
	variables := map[string]string{}
	for v := range strings.SplitSeq(string(text), "\x00") {
		name, value, _ := strings.Cut(v, "=")
		variables[name] = value
	}
	return job.Here(func(name string) string { return variables[name] }) == j.ID
}

// drain asks all to drain and end, and waits for that, but not longer than limit.
func (all processes) drain(ctx context.Context, limit time.Duration) {
	if limit <= 0 {
		return
	}
	late := time.Now().Add(limit)
	for _, p := range all {
		_ = unix.PidfdSendSignal(p.fd, unix.SIGTERM, nil, 0) // whoever does not hear it is killed
	}
	for _, p := range all {
		for !ended(p.fd, 100*time.Millisecond) && ctx.Err() == nil && time.Now().Before(late) {
		}
	}
}

// kill ends all, waits until they are gone, and returns which it killed.
func (all processes) kill(ctx context.Context) (killed []int, err error) {
	for _, p := range all {
		if ended(p.fd, 0) {
			continue
		}
		failed := unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0)
		switch {
		case failed == nil:
			killed = append(killed, p.pid)
		case !errors.Is(failed, unix.ESRCH):
			err = errors.Join(err, fmt.Errorf("epilog: kill process %d: %w", p.pid, failed))
		}
	}
	for _, p := range all {
		for !ended(p.fd, 100*time.Millisecond) {
			if ctx.Err() != nil {
				return killed, errors.Join(err, fmt.Errorf("epilog: process %d was killed and is still there: %w", p.pid, ctx.Err()))
			}
		}
	}
	return killed, err
}

// ended reports whether the process ends within so long.
func ended(fd int, within time.Duration) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(within.Milliseconds()))
	return err == nil && n > 0
}

func (all processes) close() {
	for _, p := range all {
		unix.Close(p.fd)
	}
}
