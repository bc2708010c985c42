package respbench

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/internal/rawfd"
	"cascadekv/internal/resp"
)

// plainConn is a connection of which every read and write is one system call
// that waits, as it is with clients that have a thread for each connection:
// LMCache's is one, in C++. Go's scheduler is not told of these waits, see
// threads: what it would do meanwhile costs a tenth of two cores with large
// values, and more to the subject that uses both.
//
// One goroutine reads and writes; Close may come from another.
type plainConn struct {
	net.Conn // for its addresses; closed
	fd       int
	hungUp   atomic.Bool
}

// plainWait is how long one system call waits at most. With a limit any signal
// ends it, such as the one by which Go's runtime stops a thread.
const plainWait = time.Second

// dialPlain connects to a server.
func dialPlain(network, addr string) (*plainConn, error) {
	nc, err := net.Dial(network, addr)
	if err != nil {
		return nil, err
	}
	if err := resp.CheckServer(nc); err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	fd, err := rawfd.Take(nc)
	if err != nil {
		return nil, err
	}
	limit := unix.NsecToTimeval(plainWait.Nanoseconds())
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)); err != nil {
		return nil, errors.Join(fmt.Errorf("bench: limit the waits of a connection: %w", err), unix.Close(fd))
	}
	return &plainConn{Conn: nc, fd: fd}, nil
}

// Read implements net.Conn.
func (c *plainConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch {
		case c.hungUp.Load():
			return 0, net.ErrClosed
		case errno == unix.EINTR || errno == unix.EAGAIN:
			runtime.Gosched() // nothing else in this loop can be interrupted by who stops the program
		case errno != 0:
			return 0, os.NewSyscallError("read", errno)
		case n == 0:
			return 0, io.EOF
		default:
			return int(n), nil
		}
	}
}

// Write implements net.Conn.
func (c *plainConn) Write(p []byte) (int, error) {
	if err := c.Writev([][]byte{p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Writev implements resp.VectorWriter.
func (c *plainConn) Writev(bufs [][]byte) error {
	var room [4]unix.Iovec
	vec := room[:0]
	for _, b := range bufs {
		if len(b) > 0 {
			v := unix.Iovec{Base: &b[0]}
			v.SetLen(len(b))
			vec = append(vec, v)
		}
	}
	for len(vec) > 0 {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(c.fd), uintptr(unsafe.Pointer(&vec[0])), uintptr(len(vec)))
		switch {
		case c.hungUp.Load():
			return net.ErrClosed
		case errno == unix.EINTR || errno == unix.EAGAIN:
			runtime.Gosched() // nothing else in this loop can be interrupted by who stops the program
		case errno != 0:
			return os.NewSyscallError("writev", errno)
		default:
			vec = behind(vec, uint64(n))
		}
	}
	return nil
}

// behind is what is left of vec after its first n bytes.
func behind(vec []unix.Iovec, n uint64) []unix.Iovec {
	for len(vec) > 0 && n >= vec[0].Len {
		n -= vec[0].Len
		vec = vec[1:]
	}
	if n > 0 {
		vec[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(vec[0].Base), n))
		vec[0].Len -= n
	}
	return vec
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
