package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Duplicator is implemented by files of the kernel.
type Duplicator interface {
	// Duplicate returns a descriptor more of the open file, for whoever has the kernel read and write it. Errors: the errno.
	Duplicate() (*os.File, error)
}

// Duplicate is f's Duplicate, where f has one; errors.ErrUnsupported where not.
func Duplicate(f File) (*os.File, error) {
	if d, ok := f.(Duplicator); ok {
		return d.Duplicate()
	}
	return nil, errors.ErrUnsupported
}

// Duplicate implements Duplicator.
func (f *osFile) Duplicate() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(f.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, pathErr("fcntl", f.path, err)
	}
	return os.NewFile(uintptr(fd), f.path), nil
}

// Duplicate implements Duplicator where the wrapped file does. No hook is asked of what is done by it.
func (f *hookedFile) Duplicate() (*os.File, error) { return Duplicate(f.File) }
