package server

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// rights is a wire that sends a descriptor with the first byte written to it.
type rights struct {
	*wire
	fd int
}

// Write implements io.Writer, for one call.
func (r rights) Write(p []byte) (int, error) {
	n, err := r.sendFirst(p)
	if err != nil || n == len(p) {
		return n, err
	}
	more, err := r.wire.Write(p[n:])
	return n + more, err
}

// sendFirst sends the descriptor with at least one byte of p.
func (r rights) sendFirst(p []byte) (int, error) {
	n, err := r.sendOnce(p)
	if !errors.Is(err, errStalled) {
		return n, err
	}
	err = r.retry(func() error {
		n, err = r.sendOnce(p)
		return err
	})
	return n, err
}

func (r rights) sendOnce(p []byte) (int, error) {
	leave := r.enterSoon()
	defer func() { <-leave }()
	for {
		n, err := unix.SendmsgN(r.wire.fd, p, unix.UnixRights(r.fd), nil, unix.MSG_NOSIGNAL)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return 0, errStalled
		case err != nil:
			return 0, os.NewSyscallError("send", err)
		default:
			return n, nil
		}
	}
}

// replyFile replies with the size of a file, and its descriptor.
func (c *conn) replyFile(fd int, size int64) {
	if c.flush() != nil {
		c.quit = true
		return
	}
	c.wr.Array(1)
	c.wr.Int(size)
	if c.wr.Flush(rights{c.wire, fd}) != nil {
		c.quit = true
	}
}
