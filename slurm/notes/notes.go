package notes

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// suffix ends the name of a note.
	suffix = ".left"
	// DirPrefix begins the name of a directory that RemoveJob may remove.
	DirPrefix = ".cascade-"
	// mostFiles bounds how many files of such a directory are removed.
	mostFiles = 1 << 16
)

// ErrKept means that something is noted and was left where it is.
var ErrKept = errors.New("notes: it is not removed")

// Dir returns the directory of a user's notes on this node.
func Dir(uid int) string { return "/tmp/cascade-" + strconv.Itoa(uid) }

// Add notes in dir that a job will have a socket or directory at path, and returns what removes
// the note. Whoever adds the same note again has it alone.
func Add(dir string, job int, path string) (remove func(), err error) {
	path, err = filepath.Abs(path)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("notes: %w", err)
	}
	if err := own(dir); err != nil {
		return nil, err
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(path)) // it does not fail
	note := filepath.Join(dir, prefix(job)+strconv.FormatUint(hash.Sum64(), 16)+suffix)
	if err := os.Symlink(path, note); err != nil {
		if target, failed := os.Readlink(note); failed != nil || target != path {
			return nil, fmt.Errorf("notes: %w", err)
		}
	}
	return func() { _ = os.Remove(note) }, nil // else the epilog finds it, and nothing at the path
}

func prefix(job int) string { return "job" + strconv.Itoa(job) + "-" }

// own checks that a directory is this user's and that nobody else can write to it.
func own(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("notes: %w", &fs.PathError{Op: "lstat", Path: dir, Err: err})
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("notes: %s must be a directory of user %d that nobody else can write to", dir, os.Geteuid())
	}
	return nil
}

// RemoveJob removes what a job has noted in dir and still has, and the notes. A directory that is
// not there, or not this user's, has none. What a process of the user has in use stays, and so
// does what is neither socket nor directory of a launch: for these the error is ErrKept.
func RemoveJob(ctx context.Context, dir string, job int) (removed []string, err error) {
	if own(dir) != nil {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("notes: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix(job)) || !strings.HasSuffix(e.Name(), suffix) || e.Type() != fs.ModeSymlink {
			continue
		}
		note := filepath.Join(dir, e.Name())
		path, failed := os.Readlink(note)
		gone := false
		if failed == nil {
			gone, failed = remove(ctx, path)
		}
		if failed == nil {
			failed = os.Remove(note)
		}
		err = errors.Join(err, failed)
		if gone {
			removed = append(removed, path)
		}
	}
	return removed, err
}

// remove removes what a note names; gone is false where nothing is.
func remove(ctx context.Context, path string) (gone bool, err error) {
	if ctx.Err() != nil {
		return false, fmt.Errorf("%w: %q: %w", ErrKept, path, ctx.Err())
	}
	var st unix.Stat_t
	err = unix.Lstat(path, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%w: %q: %w", ErrKept, path, err)
	case !filepath.IsAbs(path), int(st.Uid) != os.Geteuid():
		return false, fmt.Errorf("%w: %q is not this user's", ErrKept, path)
	case st.Mode&unix.S_IFMT == unix.S_IFSOCK:
		err = removeSocket(ctx, path)
	case st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&0o077 == 0 && strings.HasPrefix(filepath.Base(path), DirPrefix):
		err = removeDir(path)
	default:
		err = errors.New("it is neither a socket nor the directory of a launch")
	}
	if err != nil {
		return false, fmt.Errorf("%w: %q: %w", ErrKept, path, err)
	}
	return true, nil
}

// removeSocket removes a socket on which nobody listens.
func removeSocket(ctx context.Context, path string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close() // nothing was sent
		return errors.New("a program listens there")
	case !errors.Is(err, syscall.ECONNREFUSED):
		return err
	}
	return os.Remove(path)
}

// removeDir removes the files of a directory, and then itself. Directories in it keep it.
func removeDir(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), path)
	defer d.Close()
	names, err := d.Readdirnames(mostFiles)
	if err != nil && len(names) > 0 {
		return err
	}
	for _, name := range names {
		if err := unix.Unlinkat(fd, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return unix.Rmdir(path)
}
