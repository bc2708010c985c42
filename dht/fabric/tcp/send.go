package tcp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sender sends the answers of one payload stream. It waits in the kernel while
// the stream is full, and for a moment for the next read: Go's poller would
// take several wake-ups of threads for each. shut ends these waits.
type sender struct {
	raw syscall.RawConn
	end time.Time // of the answer that is being sent

	head [headerSize]byte
	out  int    // bytes of head that are out
	rest []byte // what follows
	vec  [2]unix.Iovec
	msg  unix.Msghdr // vec and msg are here because the kernel is given their addresses
}

// linger is how long a stream that was just served waits for its next read
// with a thread.
const linger = 2 * time.Millisecond

func newSender(conn net.Conn) (*sender, error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T has no descriptor", conn)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &sender{raw: raw}, nil
}

// shut ends whatever waits on a stream, in Go's poller or in the kernel; its
// goroutine then closes it. Close alone would wait for the kernel.
func shut(conn net.Conn) {
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.CloseRead() // they fail when the peer is gone: just as well
		_ = t.CloseWrite()
	}
}

// await lingers, if a thread may.
func (s *sender) await(threads chan struct{}) error {
	if s.end.IsZero() {
		return nil // nothing was served yet
	}
	select {
	case threads <- struct{}{}:
		defer func() { <-threads }()
	default:
		return nil
	}
	return s.raw.Control(func(fd uintptr) {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, _ = unix.Poll(fds[:], int(linger/time.Millisecond)) // who receives next will see what is wrong
	})
}

// send sends a header and what follows it, until end at the latest.
func (s *sender) send(h header, follows []byte, end time.Time) error {
	h.encode(&s.head)
	s.out, s.rest, s.end = 0, follows, end
	var failed error
	err := s.raw.Write(func(fd uintptr) bool {
		failed = s.run(fd)
		return true
	})
	s.rest, s.vec = nil, [2]unix.Iovec{} // what lies there is not the sender's to keep
	return errors.Join(err, failed)
}

func (s *sender) run(fd uintptr) error {
	for s.out < headerSize || len(s.rest) > 0 {
		n, errno := s.once(fd)
		switch errno {
		case 0:
			k := min(n, headerSize-s.out)
			s.out += k
			s.rest = s.rest[n-k:]
		case unix.EINTR:
		case unix.EAGAIN:
			if err := s.wait(fd); err != nil {
				return err
			}
		default:
			return os.NewSyscallError("send", errno)
		}
	}
	return nil
}

// once is one call of the kernel.
func (s *sender) once(fd uintptr) (int, syscall.Errno) {
	k := 0
	if s.out < headerSize {
		s.vec[0].Base = &s.head[s.out]
		s.vec[0].SetLen(headerSize - s.out)
		k = 1
	}
	if len(s.rest) > 0 {
		s.vec[k].Base = &s.rest[0]
		s.vec[k].SetLen(min(len(s.rest), piece))
		k++
	}
	s.msg = unix.Msghdr{Iov: &s.vec[0]}
	s.msg.SetIovlen(k)
	n, _, errno := unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&s.msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	return int(n), errno
}

// wait waits for room on the stream.
func (s *sender) wait(fd uintptr) error {
	left := time.Until(s.end)
	if left <= 0 {
		return fmt.Errorf("the reader is slow: %w", os.ErrDeadlineExceeded)
	}
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	_, err := unix.Poll(fds[:], int(left/time.Millisecond)+1)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return os.NewSyscallError("poll", err)
	}
	return nil
}
