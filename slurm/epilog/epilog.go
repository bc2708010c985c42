package epilog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"cascadekv/tiers/shm"
)

// nobody is the group of a process that has become a user: none that a file is shared by.
const nobody = 65534

// ErrUser means that this process can not act for the user of the job.
var ErrUser = errors.New("epilog: only root, or the user of the job, can remove what it left")

// Job is what is over.
type Job struct {
	ID   int
	UID  int      // whose it was
	Dirs []string // where arenas are
}

// Removed is what Clean did.
type Removed struct {
	Killed []int       `json:"killed"` // processes
	Arenas []shm.Arena `json:"removed"`
}

// Clean kills the ranks of a job on this node and removes their arenas. The process is the
// job's user from then on, in all threads: it is to end soon. ctx bounds how long ranks may
// take to be gone. Errors: ErrUser, shm.ErrLive, those of the system.
func Clean(ctx context.Context, j Job) (r Removed, err error) {
	r = Removed{Killed: []int{}, Arenas: []shm.Arena{}}
	if me := os.Geteuid(); me != 0 && me != j.UID {
		return r, fmt.Errorf("%w: user %d is asked for, and this one is %d", ErrUser, j.UID, me)
	}
	ranks, unseen := find("/proc", j)
	defer ranks.close()
	if err := become(j.UID); err != nil {
		return r, errors.Join(unseen, err)
	}
	killed, alive := ranks.kill(ctx)
	r.Killed, err = append(r.Killed, killed...), errors.Join(unseen, alive)
	for _, dir := range j.Dirs {
		removed, failed := shm.RemoveJob(ctx, dir, uint64(j.ID))
		r.Arenas, err = append(r.Arenas, removed...), errors.Join(err, failed)
	}
	return r, err
}

// become gives up all rights but those of a user.
func become(uid int) error {
	if os.Geteuid() == uid {
		return nil
	}
	err := syscall.Setgroups(nil)
	if err == nil {
		err = syscall.Setresgid(nobody, nobody, nobody)
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
