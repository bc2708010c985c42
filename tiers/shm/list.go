package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"cascadekv/internal/arena"
	"cascadekv/tiers/memory"
)

// State says whether a rank uses an arena file.
type State string

// States of an arena file.
const (
	Live    State = "live"    // a process has it open and locked
	Stale   State = "stale"   // no process has
	Unknown State = "unknown" // another user's, which can not be opened
)

// Arena describes an arena file.
type Arena struct {
	Path      string `json:"path"`
	UID       int    `json:"uid"`
	Size      int64  `json:"size"`      // bytes
	Allocated int64  `json:"allocated"` // bytes of memory that it takes
	State     State  `json:"state"`
	Blocks    int    `json:"blocks"` // as its records say; -1: they can not be read
	Names     int    `json:"names"`  // likewise
	Payload   int64  `json:"payload"`
	Job       uint64 `json:"job"` // the Slurm job whose rank has it or had it last; 0: none, or not known
}

// Errors of Remove.
var (
	ErrLive     = errors.New("a rank uses this arena file: stop it first")
	ErrNotArena = errors.New("not an arena file")
)

// arenaName is how arena files are called: by default, or by a site that keeps the
// suffix; with the endings of a second choice and of one that is not complete.
var arenaName = regexp.MustCompile(`\.arena(\.[1-9])?(\.new)?$`)

// List describes the arena files in a directory that are recognised by their name
// or by their first bytes, in the order of their names.
func List(dir string) ([]Arena, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	var found []Arena
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		a, err := Look(filepath.Join(dir, e.Name()))
		if err == nil {
			found = append(found, a)
		}
	}
	return found, nil
}

// Look describes one arena file. The error matches ErrNotArena for anything else,
// and os.ErrNotExist where nothing is.
func Look(path string) (Arena, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Arena{}, fmt.Errorf("shm: %s: %w", path, err)
	}
	a := Arena{Path: path, UID: int(st.Uid), Size: st.Size, Allocated: st.Blocks * 512, State: Unknown, Blocks: -1, Names: -1}
	named := arenaName.MatchString(path)
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return a, fmt.Errorf("shm: %s: %w: it is no regular file", path, ErrNotArena)
	}
	f, err := open(path)
	if err != nil {
		if named && errors.Is(err, os.ErrPermission) {
			return a, nil
		}
		return a, fmt.Errorf("shm: %w", err)
	}
	defer f.Close()
	what, err := memory.Inspect(f, st.Size)
	switch {
	case err == nil:
		a.Blocks, a.Names, a.Payload = what.Blocks, what.Names, what.Bytes
	case !named:
		return a, fmt.Errorf("shm: %s: %w", path, ErrNotArena)
	}
	a.Job, _, _ = memory.JobOf(f) // a damaged one has none
	locked, err := arena.IsLocked(f)
	if err != nil {
		return a, err
	}
	if a.State = Stale; locked {
		a.State = Live
	}
	return a, nil
}

// InUse reports whether a rank of this user has the arena file at path, or one of the other
// memory.Names.
func InUse(path string) bool {
	for _, name := range memory.Names(path) {
		if f, err := open(name); err == nil {
			locked, err := arena.IsLocked(f)
			f.Close()
			if locked && err == nil {
				return true
			}
		}
	}
	return false
}

func open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// Remove removes an arena file that no rank uses, and returns what it was.
// Errors: ErrLive, ErrNotArena, those of the file system.
func Remove(path string) (Arena, error) {
	a, err := Look(path)
	if err != nil {
		return a, err
	}
	f, err := open(path)
	if err != nil {
		return a, fmt.Errorf("shm: %w", err)
	}
	// A rank that starts now waits for the lock, and then finds that the name is gone.
	k, err := arena.Claim(f)
	if err != nil {
		f.Close()
	}
	if errors.Is(err, arena.ErrInUse) {
		return a, fmt.Errorf("shm: %s: %w", path, ErrLive)
	}
	if err != nil {
		return a, err
	}
	defer k.Close()
	if err := k.Unlink(); err != nil {
		return a, err
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return a, fmt.Errorf("shm: %s: %w: another file has this name now", path, ErrLive)
	}
	return a, nil
}
