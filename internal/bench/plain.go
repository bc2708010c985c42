package bench

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// plainConn is a connection of which every read and write is one system call
// that waits, as it is with clients that have a thread for each connection:
// LMCache's is one, in C++. Connections of Go's net package wait through its
// scheduler, which costs a tenth of two cores with large values, and more to the
// subject that uses both.
//
// One goroutine reads and writes; Close may come from another.
type plainConn struct {
	net.Conn // for its addresses; closed
	fd       int
	hungUp   atomic.Bool
}

// dialPlain connects to a server.
func dialPlain(network, addr string) (*plainConn, error) {
	nc, err := net.Dial(network, addr)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	f, err := nc.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	return &plainConn{Conn: nc, fd: fd}, nil
}

// Read implements net.Conn.
func (c *plainConn) Read(p []byte) (int, error) {
	n, err := again(func() (int, error) { return unix.Read(c.fd, p) })
	switch {
	case c.hungUp.Load():
		return 0, net.ErrClosed
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (c *plainConn) Write(p []byte) (int, error) {
	if err := c.Writev([][]byte{p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Writev implements resp.VectorWriter. The slices of bufs are its own.
func (c *plainConn) Writev(bufs [][]byte) error {
	for len(bufs) > 0 {
		n, err := again(func() (int, error) { return unix.Writev(c.fd, bufs) })
		switch {
		case c.hungUp.Load():
			return net.ErrClosed
		case err != nil:
			return os.NewSyscallError("writev", err)
		}
		for len(bufs) > 0 && n >= len(bufs[0]) {
			n, bufs = n-len(bufs[0]), bufs[1:]
		}
		if n > 0 {
			bufs[0] = bufs[0][n:]
		}
	}
	return nil
}

// Close implements net.Conn: it ends the wait of whoever reads or writes, and
// all that come later. The descriptor stays until release.
func (c *plainConn) Close() error {
	c.hungUp.Store(true)
	if err := unix.Shutdown(c.fd, unix.SHUT_RDWR); err != nil && !errors.Is(err, unix.ENOTCONN) {
		return fmt.Errorf("bench: hang up: %w", err)
	}
	return nil
}

// release gives the descriptor back. Nobody reads or writes any more.
func (c *plainConn) release() error { return unix.Close(c.fd) }

// again repeats a system call that a signal ended.
func again(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
