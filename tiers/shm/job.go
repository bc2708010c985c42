package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/arena"
	"cascadekv/tiers/memory"
)

// jobPause is how long is waited before a file that a rank uses is tried again.
const jobPause = 100 * time.Millisecond

// RemoveJob removes the arena files in a directory that belong to the effective user of
// this process and that a rank of a Slurm job had last, whatever they are called. One that
// a rank still uses is waited for until ctx ends.
//
// The directory may be one that anybody writes to, and its names may lie: what a file is
// and whose is asked of the open file, and the kernel lets nobody remove a file of another
// user from a sticky directory. So whoever cleans up after a user does it as that user.
func RemoveJob(ctx context.Context, dir string, job uint64) (removed []Arena, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		a, failed := removeOf(ctx, filepath.Join(dir, e.Name()), job)
		if failed != nil {
			err = errors.Join(err, failed)
		} else if a != nil {
			removed = append(removed, *a)
		}
	}
	return removed, err
}

// removeOf removes an arena file of the job; nil for anything else.
func removeOf(ctx context.Context, path string, job uint64) (*Arena, error) {
	f, err := open(path)
	if err != nil {
		return nil, nil // another user's, or no file any more
	}
	defer f.Close()
	if !isOf(f, job) {
		return nil, nil
	}
	k, err := arena.Claim(f)
	for errors.Is(err, arena.ErrInUse) {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("shm: %s: %w", path, ErrLive)
		case <-time.After(jobPause):
		}
		k, err = arena.Claim(f)
	}
	if err != nil {
		return nil, err
	}
	if !isOf(f, job) { // a rank of another job had it meanwhile
		return nil, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("shm: %s: %w", path, err)
	}
	a := &Arena{Path: path, UID: int(st.Uid), Size: st.Size, Allocated: st.Blocks * 512, State: Stale, Blocks: -1, Names: -1, Job: job}
	return a, k.Unlink()
}

// isOf reports whether an open file is an arena of this user that a rank of the job had
// last. One that was just being made must be called like an arena as well.
func isOf(f *os.File, job uint64) bool {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() {
		return false
	}
	of, unfinished, err := memory.JobOf(f)
	return err == nil && of == job && job != 0 && (!unfinished || arenaName.MatchString(f.Name()))
}
