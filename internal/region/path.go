package region

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is the folder whose files may be regions by their path.
const Root = "/dev/shm/"

// Open opens a file below Root for Attach. It goes one name at a time and
// follows no symbolic link, so that the path names what it seems to; openat2
// would say so in one call, and is missing in kernels that clusters still run.
// The error matches ErrUnsuitable.
func Open(path string) (fd int, err error) {
	rest, ok := strings.CutPrefix(path, Root)
	if !ok {
		return -1, fmt.Errorf("%w: %.256q is not below %s", ErrUnsuitable, path, Root)
	}
	names := strings.Split(rest, "/")
	for _, n := range names {
		if n == "" || n == "." || n == ".." || strings.IndexByte(n, 0) >= 0 {
			return -1, fmt.Errorf("%w: %.256q is not a plain path", ErrUnsuitable, path)
		}
	}
	fd, err = unix.Open(Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; i < len(names) && err == nil; i++ {
		// O_NONBLOCK: what turns out to be a pipe or a device is not waited for.
		flags := unix.O_RDWR | unix.O_NONBLOCK | unix.O_NOCTTY
		if i < len(names)-1 {
			flags = unix.O_PATH | unix.O_DIRECTORY
		}
		parent := fd
		fd, err = unix.Openat(parent, names[i], flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		_ = unix.Close(parent)
	}
	if err != nil {
		return -1, fmt.Errorf("%w: open %.256q: %w", ErrUnsuitable, path, err)
	}
	return fd, nil
}
