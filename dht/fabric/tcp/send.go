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

// sendPayload sends a payload's frame and the payload, and waits in the kernel
// while the stream is full: the detour through Go's poller costs a tenth of
// the bandwidth. What ends it early is shut, or the deadline.
func sendPayload(conn net.Conn, payload []byte, end time.Time) error {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return fmt.Errorf("%T has no descriptor", conn)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	s := sending{rest: payload, end: end}
	header{kind: kindPayload, number: uint64(len(payload))}.encode(&s.head)
	err = raw.Write(func(fd uintptr) bool {
		s.failed = s.run(fd)
		return true
	})
	return errors.Join(err, s.failed)
}

// shut ends whatever waits on a stream, in Go's poller or in the kernel; its
// goroutine then closes it. Close alone would wait for the kernel.
func shut(conn net.Conn) {
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.CloseRead() // they fail when the peer is gone: just as well
		_ = t.CloseWrite()
	}
}

// sending is one payload on its way out.
type sending struct {
	head   [headerSize]byte
	out    int // bytes of head that are out
	rest   []byte
	end    time.Time
	vec    [2]unix.Iovec // here because the kernel is given its address
	msg    unix.Msghdr
	failed error
}

func (s *sending) run(fd uintptr) error {
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
func (s *sending) once(fd uintptr) (int, syscall.Errno) {
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
	n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&s.msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	return int(n), errno
}

// wait waits for room on the stream.
func (s *sending) wait(fd uintptr) error {
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
