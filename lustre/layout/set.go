package layout

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Create makes a file that must not exist, opens it for reading and writing,
// and asks for the layout. The report has what was granted; on a file system
// without stripes its Striped is false and the file is like any other. When
// the layout is refused there is no file, and the error matches ErrRefused.
// The caller closes the file.
func Create(path string, perm uint32, asked Layout) (*os.File, Report, error) {
	r := Report{Path: path, Asked: asked}
	if err := asked.Validate(); err != nil {
		return nil, r, err
	}
	fd, err := create(path, perm, &r)
	if err != nil {
		return nil, r, err
	}
	return os.NewFile(uintptr(fd), path), r, nil
}

const openFlags = unix.O_RDWR | unix.O_CLOEXEC | unix.O_NOFOLLOW

// create makes the file and fills r. What it makes is removed when it fails.
//
// The descriptor that delayed the layout is closed before the file is opened
// again. Where a request is dropped (see Ignored) the file has no objects yet:
// they are made by the first ordinary open while no other is there, and until
// then a write fails with EBADF. It also rids the file of O_ASYNC, which fcntl
// does not take from a regular file.
func create(path string, perm uint32, r *Report) (int, error) {
	flags := openFlags | unix.O_CREAT | unix.O_EXCL
	if !r.Asked.IsZero() {
		flags |= delayCreate
	}
	fd, err := open(path, flags, perm)
	if err != nil {
		return -1, err
	}
	if !r.Asked.IsZero() {
		err = ask(fd, r)
		unix.Close(fd) // nothing was written
		fd = -1
		if err == nil {
			fd, err = open(path, openFlags, 0)
		}
	}
	if err == nil {
		err = readBack(fd, r)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		unix.Unlink(path) // Lustre leaves a file that it refused, empty and without objects
		return -1, err
	}
	return fd, nil
}

// SetDefault gives the directory a layout for the files that will be made in
// it. Files and directories that it has keep theirs. The zero layout changes
// nothing; the report then has the default that is there, if any. The error
// matches ErrRefused when Lustre does not take the layout.
func SetDefault(dir string, asked Layout) (Report, error) {
	r := Report{Path: dir, Asked: asked}
	if err := asked.Validate(); err != nil {
		return r, err
	}
	fd, err := open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return r, err
	}
	defer unix.Close(fd) // only read
	if err := ask(fd, &r); err != nil {
		return r, err
	}
	return r, readBack(fd, &r)
}

// ask passes r.Asked to the kernel. A file system without stripes is no error.
func ask(fd int, r *Report) error {
	if r.Asked.IsZero() {
		return nil
	}
	b, err := r.Asked.Encode()
	if err != nil {
		return err
	}
	if err = set(fd, b, r.Asked.Composite()); err != nil && !isUnstriped(err) {
		r.Striped, r.Err = true, &RefusedError{r.Path, r.Asked, err}
		return r.Err
	}
	return nil
}

// readBack fills r with what the open file or directory has.
func readBack(fd int, r *Report) error {
	granted, err := get(fd, r.Path)
	switch {
	case errors.Is(err, ErrNotLustre):
		return nil
	case err != nil && !errors.Is(err, ErrNoLayout):
		r.Striped, r.Err = true, err
		return err
	}
	r.Striped, r.Granted = true, granted
	r.compare()
	return nil
}

// set passes a request to the kernel: plain ones by the call that the site's
// administrators can restrict, composite ones as an attribute, as lfs does.
func set(fd int, b []byte, composite bool) error {
	if composite {
		return retry(func() error { return unix.Fsetxattr(fd, xattrLayout, b, 0) })
	}
	return retry(func() error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), iocSetStripe, uintptr(unsafe.Pointer(&b[0])))
		if errno != 0 {
			return errno
		}
		return nil
	})
}

// Read returns the layout of a file, or the default of a directory. A symbolic
// link is not followed. Errors match ErrNotLustre, ErrNoLayout (a directory
// that gives files what its file system gives), ErrBadLayout, or the kernel's.
func Read(path string) (Granted, error) {
	b := make([]byte, maxXattr)
	var n int
	err := retry(func() (err error) { n, err = unix.Lgetxattr(path, xattrLayout, b); return err })
	return parse(b, n, path, err)
}

// get is Read of an open file.
func get(fd int, path string) (Granted, error) {
	b := make([]byte, maxXattr)
	var n int
	err := retry(func() (err error) { n, err = unix.Fgetxattr(fd, xattrLayout, b); return err })
	return parse(b, n, path, err)
}

func parse(b []byte, n int, path string, err error) (Granted, error) {
	switch {
	case isUnstriped(err):
		return Granted{}, fmt.Errorf("%w: %s", ErrNotLustre, path)
	case errors.Is(err, unix.ENODATA):
		return Granted{}, fmt.Errorf("%w: %s", ErrNoLayout, path)
	case err != nil:
		return Granted{}, pathErr("getxattr "+xattrLayout, path, err)
	}
	g, err := Decode(b[:n])
	if err != nil {
		return Granted{}, fmt.Errorf("%s: %w", path, err)
	}
	return g, nil
}

func open(path string, flags int, perm uint32) (int, error) {
	fd := -1
	err := retry(func() (err error) { fd, err = unix.Open(path, flags, perm); return err })
	if err != nil {
		return -1, pathErr("open", path, err)
	}
	return fd, nil
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func pathErr(op, path string, err error) error { return &os.PathError{Op: op, Path: path, Err: err} }
