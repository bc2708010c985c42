package layout

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetDefault gives the directory a layout for the files that will be made in
// it. Files and directories that it has keep theirs. The zero layout changes
// nothing, nor does any on a file system without stripes. The error matches
// ErrRefused when Lustre does not take the layout.
func SetDefault(dir string, asked Layout) error {
	if err := asked.Validate(); err != nil {
		return err
	}
	fd, err := open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) // only read
	return ask(fd, dir, asked)
}

// ask passes a layout to the kernel. A file system without stripes is no error.
func ask(fd int, path string, asked Layout) error {
	if asked.IsZero() {
		return nil
	}
	b, err := asked.Encode()
	if err != nil {
		return err
	}
	if err = set(fd, b, asked.Composite()); err != nil && !isUnstriped(err) {
		return &RefusedError{path, asked, err}
	}
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
