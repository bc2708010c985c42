package vfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Space is the result of statfs for the file system of a path, in bytes.
type Space struct {
	Total, Free int64 // Free is what an ordinary user may still take
	Type        int64 // f_type, e.g. 0x0BD00BD0 for Lustre
}

// FS is a file system. Implementations are safe for concurrent use. Errors are
// *os.PathError or *os.LinkError around the errno, so errors.Is works with both
// unix.ENOSPC and os.ErrNotExist. No method follows a symbolic link in the last
// element of a path.
type FS interface {
	// Create makes a file that must not exist yet and opens it for reading
	// and writing.
	Create(path string, perm uint32) (File, error)
	// Open opens an existing file for reading.
	Open(path string) (File, error)
	// Reopen opens an existing file for reading and writing: for files of one
	// node, whose owner starts again. Segments on a parallel file system are
	// written by the process that made them alone.
	Reopen(path string) (File, error)
	// Rename replaces to by from; both must lie in one directory.
	Rename(from, to string) error
	// Remove unlinks a file.
	Remove(path string) error
	// Mkdir makes one directory; os.ErrExist when it is there.
	Mkdir(path string, perm uint32) error
	// Rmdir removes a directory, which must be empty.
	Rmdir(path string) error
	// ReadDir returns the names in a directory in lexical order.
	ReadDir(path string) ([]string, error)
	// Statfs returns the space around path.
	Statfs(path string) (Space, error)
}

// File is an open file. All methods but Close are safe for concurrent use.
type File interface {
	// Pread fills p from offset off. It returns io.ErrUnexpectedEOF when the
	// file ends first.
	Pread(p []byte, off int64) (int, error)
	// Pwrite writes p at off.
	Pwrite(p []byte, off int64) (int, error)
	// Pwritev writes bufs one behind the other from off on. It does not change
	// bufs. When it fails, n bytes were taken.
	Pwritev(bufs [][]byte, off int64) (n int64, err error)
	// Sync makes the file durable. The kernel reports an error of earlier
	// writes once and then forgets it: after an error nothing written
	// since the last good Sync can be trusted.
	Sync() error
	// Size returns the file's length in bytes.
	Size() (int64, error)
	// Close gives the descriptor back, also when it returns an error.
	Close() error
}

// OS is the machine's file system. The zero value is ready for use.
type OS struct {
	// Readv, when not nil, does the vectored reads whose context can end, for
	// example through io_uring; the default is preadv(2).
	Readv Readv

	// Check, when not nil, is asked about each file that Open has opened, and
	// each directory but Root that ReadDir has, before anything is read from it;
	// its error refuses that. ReadDir then follows a symbolic link at Root alone.
	Check func(path string, st Stat) error
	Root  string

	// Group, when not 0, is a group that may read what Create and Mkdir make.
	Group int
}

type osFile struct {
	fd     int
	path   string
	readv  Readv
	direct atomic.Bool // O_DIRECT is set
}

const openFlags = unix.O_CLOEXEC | unix.O_NOFOLLOW

// maxVec is the kernel's limit on buffers of one vectored call.
const maxVec = 1024

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func pathErr(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: path, Err: err}
}

func (o OS) open(path string, flags int, perm uint32) (File, error) {
	fd := -1
	err := retry(func() (err error) { fd, err = unix.Open(path, flags|openFlags, perm); return err })
	if err != nil {
		return nil, pathErr("open", path, err)
	}
	return &osFile{fd: fd, path: path, readv: o.Readv}, nil
}

// Create implements FS.
func (o OS) Create(path string, perm uint32) (File, error) {
	f, err := o.open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, perm)
	if err != nil || o.Group == 0 {
		return f, err
	}
	if err := share(f.(*osFile).fd, o.Group, path); err != nil {
		return nil, errors.Join(err, f.Close(), o.Remove(path))
	}
	return f, nil
}

// Open implements FS. What is no regular file is ErrNotRegular, and never waited
// for.
func (o OS) Open(path string) (File, error) { return o.openRegular(path, unix.O_RDONLY) }

// Reopen implements FS. It refuses what Open refuses.
func (o OS) Reopen(path string) (File, error) { return o.openRegular(path, unix.O_RDWR) }

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements FS.
func (OS) Remove(path string) error {
	return pathErr("unlink", path, retry(func() error { return unix.Unlink(path) }))
}

// Mkdir implements FS.
func (o OS) Mkdir(path string, perm uint32) error {
	err := pathErr("mkdir", path, retry(func() error { return unix.Mkdir(path, perm) }))
	if err != nil || o.Group == 0 {
		return err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return pathErr("open", path, err)
	}
	defer unix.Close(fd)
	return share(fd, o.Group, path)
}

// Rmdir implements FS.
func (OS) Rmdir(path string) error {
	return pathErr("rmdir", path, retry(func() error { return unix.Rmdir(path) }))
}

// ReadDir implements FS.
func (o OS) ReadDir(path string) ([]string, error) {
	if o.Check != nil {
		return o.readDirChecked(path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// Statfs implements FS.
func (OS) Statfs(path string) (Space, error) {
	var s unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(path, &s) }); err != nil {
		return Space{}, pathErr("statfs", path, err)
	}
	unit := int64(s.Bsize)
	return Space{Total: int64(s.Blocks) * unit, Free: int64(s.Bavail) * unit, Type: int64(s.Type)}, nil
}

func (f *osFile) Pread(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		k, err := unix.Pread(f.fd, p[n:], off+int64(n))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return n, pathErr("pread", f.path, err)
		case k == 0 || f.endsAfter(k, len(p)-n):
			return n + k, pathErr("pread", f.path, io.ErrUnexpectedEOF)
		}
		n += k
	}
	return n, nil
}

func (f *osFile) Pwrite(p []byte, off int64) (int, error) {
	n, err := f.Pwritev([][]byte{p}, off)
	return int(n), err
}

func (f *osFile) Pwritev(bufs [][]byte, off int64) (int64, error) {
	var n int64
	rest := append(make([][]byte, 0, len(bufs)), bufs...)
	for {
		for len(rest) > 0 && len(rest[0]) == 0 {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			return n, nil
		}
		k, err := unix.Pwritev(f.fd, rest[:min(len(rest), maxVec)], off+n)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return n, pathErr("pwritev", f.path, err)
		case k == 0:
			return n, pathErr("pwritev", f.path, io.ErrShortWrite)
		}
		n += int64(k)
		rest = advance(rest, k)
	}
}

// advance drops the first n bytes of bufs, which it may change.
func advance(bufs [][]byte, n int) [][]byte {
	for n > 0 {
		if k := len(bufs[0]); k <= n {
			n -= k
			bufs = bufs[1:]
			continue
		}
		bufs[0] = bufs[0][n:]
		return bufs
	}
	return bufs
}

func (f *osFile) Sync() error {
	return pathErr("fsync", f.path, retry(func() error { return unix.Fsync(f.fd) }))
}

func (f *osFile) Size() (int64, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(f.fd, &st) }); err != nil {
		return 0, pathErr("fstat", f.path, err)
	}
	return st.Size, nil
}

func (f *osFile) Close() error {
	if f.fd < 0 {
		return fmt.Errorf("vfs: %s is closed already", f.path)
	}
	fd := f.fd
	f.fd = -1
	err := unix.Close(fd)
	if err == unix.EINTR { // Linux has closed it all the same
		err = nil
	}
	return pathErr("close", f.path, err)
}

// Errno values that callers distinguish, so that they need not import the
// system's package. Test with errors.Is.
const (
	ErrNoSpace = unix.ENOSPC
	ErrQuota   = unix.EDQUOT
	ErrStale   = unix.ESTALE
	ErrIO      = unix.EIO
	ErrLoop    = unix.ELOOP   // a symbolic link, where none is followed
	ErrNotDir  = unix.ENOTDIR // likewise, of a directory
	ErrNoFiles = unix.EMFILE  // this process has as many files open as it may
	ErrNoMore  = unix.ENFILE  // all of the machine has
)
