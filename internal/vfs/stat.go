package vfs

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrNotRegular means that a name stands for something else than a regular file:
// a directory, a pipe, a device. Nothing was read from it.
var ErrNotRegular = errors.New("not a regular file")

// Stat is what a file system says of a file or directory, without its size: on a
// parallel file system only the servers that hold the bytes know that, and one of
// them may not answer.
type Stat struct {
	Dev, Ino uint64 // which file it is
	UID, GID uint32 // of its owner and group
	Mode     uint32 // type and permissions, as st_mode has them
	Links    uint64 // names that it has; 0: it was unlinked
}

// IsRegular reports whether it is a regular file.
func (s Stat) IsRegular() bool { return s.Mode&unix.S_IFMT == unix.S_IFREG }

// Same reports whether both are the same file.
func (s Stat) Same(o Stat) bool { return s.Dev == o.Dev && s.Ino == o.Ino }

// Stater is implemented by files that can say what they are.
type Stater interface {
	// Stat describes the file that is open. Errors: the errno.
	Stat() (Stat, error)
}

// StatOf is f's Stat, where f has one; errors.ErrUnsupported where not.
func StatOf(f File) (Stat, error) {
	if s, ok := f.(Stater); ok {
		return s.Stat()
	}
	return Stat{}, errors.ErrUnsupported
}

// Stat implements Stater.
func (f *osFile) Stat() (Stat, error) {
	s, err := statFD(f.fd)
	return s, pathErr("stat", f.path, err)
}

// Stat implements Stater where the wrapped file does. No hook is asked.
func (f *hookedFile) Stat() (Stat, error) { return StatOf(f.File) }

// Stat implements Stater where the wrapped file does.
func (d *directFile) Stat() (Stat, error) { return StatOf(d.File) }

// StatPath describes what path leads to, also by symbolic links. It opens
// nothing. Errors: *os.PathError.
func StatPath(path string) (Stat, error) {
	s, err := statx(unix.AT_FDCWD, path, 0)
	return s, pathErr("stat", path, err)
}

func statFD(fd int) (Stat, error) { return statx(fd, "", unix.AT_EMPTY_PATH) }

func statx(fd int, path string, flags int) (Stat, error) {
	var st unix.Statx_t
	const want = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_UID | unix.STATX_GID | unix.STATX_INO
	err := retry(func() error { return unix.Statx(fd, path, flags, want, &st) })
	return Stat{
		Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino,
		UID: st.Uid, GID: st.Gid, Mode: uint32(st.Mode), Links: uint64(st.Nlink),
	}, err
}

// openRegular opens a file, for reading or for both, if it is one, and passes the check. A pipe
// whose other end nobody opens would keep an open waiting for ever, so that does
// not wait; what waits are reads of a file, as ever.
func (o OS) openRegular(path string, mode int) (File, error) {
	f, err := o.open(path, mode|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	file := f.(*osFile)
	st, err := file.Stat()
	if err == nil && !st.IsRegular() {
		err = pathErr("open", path, ErrNotRegular)
	}
	if err == nil && o.Check != nil {
		err = o.Check(path, st)
	}
	if err == nil { // Lustre heeds the flag in reads too
		_, err = unix.FcntlInt(uintptr(file.fd), unix.F_SETFL, 0)
		err = pathErr("fcntl", path, err)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// readDirChecked lists a directory after the check of what was opened. Only Root
// may be a symbolic link.
func (o OS) readDirChecked(path string) ([]string, error) {
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK | unix.O_CLOEXEC
	if path != o.Root {
		flags |= unix.O_NOFOLLOW
	}
	fd := -1
	err := retry(func() (err error) { fd, err = unix.Open(path, flags, 0); return err })
	if err != nil {
		return nil, pathErr("open", path, err)
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close() // only read: its error does not matter
	if path != o.Root {
		st, err := statFD(fd)
		if err == nil {
			err = o.Check(path, st)
		} else {
			err = pathErr("stat", path, err)
		}
		if err != nil {
			return nil, err
		}
	}
	names, err := dir.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// share gives what this process has made to a group, which may read it.
func share(fd, group int, path string) error {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstat(fd, &st) })
	if err == nil {
		err = retry(func() error { return unix.Fchown(fd, -1, group) })
	}
	if err == nil {
		mode := st.Mode & 0o700
		err = retry(func() error { return unix.Fchmod(fd, mode|mode>>3&0o050) })
	}
	return pathErr("share with the group", path, err)
}
