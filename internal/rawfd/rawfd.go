package rawfd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Take returns a descriptor of nc's socket that blocks and that the runtime
// does not know; the caller closes it. nc is closed in any case.
func Take(nc net.Conn) (fd int, err error) {
	defer nc.Close()
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("%T has no descriptor", nc)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd = -1
	var failed error
	err = raw.Control(func(old uintptr) {
		fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err = errors.Join(err, failed); err != nil {
		return -1, fmt.Errorf("take over a connection: %w", err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("take over a connection: %w", os.NewSyscallError("fcntl", err))
	}
	return fd, nil
}
