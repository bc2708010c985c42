package epilog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cascadekv/slurm/notes"
	"cascadekv/tiers/shm"
)

const (
	// nobody is the group of a process that has become a user whose groups are not known: none that a file is
	// shared by.
	nobody = 65534
	// groupsTimeout is how long a name service may take to list a user's groups.
	groupsTimeout = 3 * time.Second
)

// ErrUser means that this process can not act for the user of the job.
var ErrUser = errors.New("epilog: only root, or the user of the job, can remove what it left")

// Job is what is over.
type Job struct {
	ID    int
	UID   int           // whose it was
	Dirs  []string      // where arenas are
	Notes string        // where the user's notes are (slurm/notes)
	Drain time.Duration // how long ranks may take to drain before they are killed
}

// Removed is what Clean did.
type Removed struct {
	Killed []int       `json:"killed"` // processes
	Arenas []shm.Arena `json:"removed"`
	Paths  []string    `json:"paths"` // that were noted: sockets, and directories of launches
}

// Clean ends the ranks of a job on this node, with a drain if they have time for one, and removes their arenas, their sockets and the
// directories of launches. The process is the job's user from then on, in all threads: it is to
// end soon. ctx bounds how long ranks may take to be gone. Errors: ErrUser, shm.ErrLive,
// notes.ErrKept, those of the system.
func Clean(ctx context.Context, j Job) (r Removed, err error) {
	r = Removed{Killed: []int{}, Arenas: []shm.Arena{}, Paths: []string{}}
	if me := os.Geteuid(); me != 0 && me != j.UID {
		return r, fmt.Errorf("%w: user %d is asked for, and this one is %d", ErrUser, j.UID, me)
	}
	ranks, unseen := find("/proc", j)
	defer ranks.close()
	if err := become(ctx, j.UID); err != nil {
		return r, errors.Join(unseen, err)
	}
	ranks.drain(ctx, j.Drain)
	killed, alive := ranks.kill(ctx)
	r.Killed, err = append(r.Killed, killed...), errors.Join(unseen, alive)
	for _, dir := range j.Dirs {
		removed, failed := shm.RemoveJob(ctx, dir, uint64(j.ID))
		r.Arenas, err = append(r.Arenas, removed...), errors.Join(err, failed)
	}
	// Last: a directory may be in a file system that does not answer.
	paths, failed := notes.RemoveJob(ctx, j.Notes, j.ID)
	r.Paths = append(r.Paths, paths...)
	return r, errors.Join(err, failed)
}

// become gives up all rights but those of a user.
func become(ctx context.Context, uid int) error {
	if os.Geteuid() == uid {
		return nil
	}
	groups := groupsOf(ctx, uid)
	err := syscall.Setgroups(groups)
	if err == nil {
		err = syscall.Setresgid(groups[0], groups[0], groups[0])
	}
	if err == nil {
		err = syscall.Setresuid(uid, uid, uid)
	}
	if err == nil && (os.Getuid() != uid || os.Geteuid() != uid) {
		err = errors.New("it is another user still")
	}
	if err != nil {
		return fmt.Errorf("%w: becoming user %d: %w", ErrUser, uid, err)
	}
	return nil
}

// groupsOf lists a user's groups, the primary one first, by id, which asks the node's name services: directories of
// launches may be open to a group only.
func groupsOf(ctx context.Context, uid int) (groups []int) {
	ctx, cancel := context.WithTimeout(ctx, groupsTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "id", "-G", "--", strconv.Itoa(uid))
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	for word := range strings.FieldsSeq(string(out)) {
		g, failed := strconv.Atoi(word)
		if err != nil || failed != nil || g == 0 && uid != 0 {
			return []int{nobody}
		}
		groups = append(groups, g)
	}
	if len(groups) == 0 {
		return []int{nobody}
	}
	return groups
}
