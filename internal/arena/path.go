package arena

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLost means that the file behind a mapping was truncated: touching what was
// cut off raises SIGBUS, and what comes after it is zeros.
var ErrLost = errors.New("arena file was truncated or overwritten")

// Path is the name that the file was opened with; "" for anonymous memory.
func (m *Mapping) Path() string {
	if m.file == nil {
		return ""
	}
	return m.file.Name()
}

// Made reports whether MapFile created the file.
func (m *Mapping) Made() bool { return m.made }

// Linked reports whether Path still leads to the file.
func (m *Mapping) Linked() bool { return m.file != nil && isAt(m.file, m.Path()) }

// isAt reports whether path leads to an open file.
func isAt(f *os.File, path string) bool {
	var is, at unix.Stat_t
	return unix.Fstat(int(f.Fd()), &is) == nil && unix.Lstat(path, &at) == nil && is.Dev == at.Dev && is.Ino == at.Ino
}

// Unlink removes the file's name, if it still is the file's. The memory goes back
// to the system when nobody has the file open or mapped any more.
func (m *Mapping) Unlink() error {
	if m.file == nil {
		return nil
	}
	return unlink(m.file)
}

func unlink(f *os.File) error {
	for _, path := range []string{f.Name(), f.Name() + nextSuffix} {
		if !isAt(f, path) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("arena: remove: %w", err)
		}
	}
	return nil
}

// nextSuffix is that of a file that is to take another one's place.
const nextSuffix = ".new"

// MapNext maps a new file of size bytes that is to take the place of the one at
// path. Path is that already, but the file gets it by Publish. Errors: those of
// MapFile.
func MapNext(path string, size int64) (*Mapping, error) {
	next := path + nextSuffix
	f, _, err := openLocked(next)
	if err != nil {
		return nil, err
	}
	m := &Mapping{file: f, made: true}
	if m, err = mapLocked(m, size, func(io.ReaderAt, int64) (int64, error) { return size, nil }); err != nil {
		return nil, err
	}
	fd, err := unix.FcntlInt(m.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("arena: map %s: %w", next, err), m.Unlink(), m.Close())
	}
	_ = m.file.Close() // the lock is that of both descriptors
	m.file = os.NewFile(uintptr(fd), path)
	return m, nil
}

// DropNext removes what a process that was killed between MapNext and Publish has
// left. Nobody else is between them: the mapping has the lock.
func (m *Mapping) DropNext() {
	next := m.Path() + nextSuffix
	var st unix.Stat_t
	if unix.Lstat(next, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && int(st.Uid) == os.Geteuid() {
		_ = os.Remove(next) // it is looked for again at the next start
	}
}

// Publish gives the file its path, in place of what is there now.
func (m *Mapping) Publish() error {
	if err := os.Rename(m.Path()+nextSuffix, m.Path()); err != nil {
		return fmt.Errorf("arena: %w", err)
	}
	return nil
}

// CheckSize returns an error that matches ErrLost when the file is shorter than
// the mapping.
func (m *Mapping) CheckSize() error {
	if m.file == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.Fd(), &st); err != nil {
		return fmt.Errorf("arena: stat %s: %w", m.Path(), err)
	}
	if st.Size < int64(len(m.mem)) {
		return fmt.Errorf("arena: %s has %d bytes of %d: %w", m.Path(), st.Size, len(m.mem), ErrLost)
	}
	return nil
}

// Keeper holds the lock on an arena file beyond the Close of its mapping, so that
// its name can be removed before another process takes the file over.
type Keeper struct{ file *os.File }

// Keep returns a keeper of the file; nil for anonymous memory.
func (m *Mapping) Keep() (*Keeper, error) {
	if m.file == nil {
		return nil, nil
	}
	fd, err := unix.FcntlInt(m.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("arena: keep %s: %w", m.Path(), err)
	}
	return &Keeper{os.NewFile(uintptr(fd), m.Path())}, nil
}

// Fd is the keeper's descriptor of the file.
func (k *Keeper) Fd() int { return int(k.file.Fd()) }

// Path is the name of the file.
func (k *Keeper) Path() string { return k.file.Name() }

// Allocated is the memory that the file takes, in bytes.
func (k *Keeper) Allocated() int64 {
	var st unix.Stat_t
	if unix.Fstat(int(k.file.Fd()), &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

// Unlink is that of Mapping.
func (k *Keeper) Unlink() error { return unlink(k.file) }

// Close gives the lock back.
func (k *Keeper) Close() error { return k.file.Close() }

// IsLocked reports whether a process holds the lock on an arena file: a rank has
// it open. It takes the lock for an instant to find out.
func IsLocked(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("arena: lock %s: %w", f.Name(), err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		return false, fmt.Errorf("arena: unlock %s: %w", f.Name(), err)
	}
	return false, nil
}

// Claim locks an open arena file, as MapFile does. It takes over f on success.
// Errors: ErrInUse.
func Claim(f *os.File) (*Keeper, error) {
	if err := lock(f); err != nil {
		return nil, err
	}
	return &Keeper{f}, nil
}
