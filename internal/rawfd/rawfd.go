package rawfd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Get returns what f returns of a socket's own descriptor, which is open meanwhile.
func Get[T any](sc syscall.Conn, f func(fd int) (T, error)) (got T, err error) {
	raw, err := sc.SyscallConn()
	if err != nil {
		return got, err
	}
	e := raw.Control(func(fd uintptr) { got, err = f(int(fd)) })
	return got, errors.Join(e, err)
}

// Take returns a descriptor of nc's socket that blocks and that the runtime
// does not know; the caller closes it. nc is closed in any case.
func Take(nc net.Conn) (fd int, err error) {
	defer nc.Close()
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("%T has no descriptor", nc)
	}
	fd, err = Get(sc, func(old int) (int, error) { return unix.FcntlInt(uintptr(old), unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		return -1, fmt.Errorf("take over a connection: %w", err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("take over a connection: %w", os.NewSyscallError("fcntl", err))
	}
	return fd, nil
}
