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

	"cascadekv/dht/fabric"
)

// sender sends the answers of one payload stream. It waits in the kernel while
// the stream is full, and for a moment for the next read: Go's poller would
// take several wake-ups of threads for each. shut ends these waits.
type sender struct {
	raw syscall.RawConn
	end time.Time // of the answer that is being sent

	heads [fabric.MaxBatch][headerSize]byte
	added int                         // of heads
	list  [2 * fabric.MaxBatch][]byte // memory of rest
	rest  [][]byte                    // what is not out yet: heads and what follows each
	vec   [2 * fabric.MaxBatch]unix.Iovec
	msg   unix.Msghdr // vec and msg are here because the kernel is given their addresses
}

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
		awaits(int(fd))
	})
}

// add adds an answer, at most fabric.MaxBatch, to those that send sends: a header and
// what follows it, which stays as it is until then.
func (s *sender) add(h header, follows []byte) {
	if s.added == 0 {
		s.rest = s.list[:0]
	}
	head := &s.heads[s.added]
	s.added++
	h.encode(head)
	if s.rest = append(s.rest, head[:]); len(follows) > 0 {
		s.rest = append(s.rest, follows)
	}
}

// send sends what was added, until end at the latest.
func (s *sender) send(end time.Time) error {
	if s.added == 0 {
		return nil
	}
	s.end = end
	var failed error
	err := s.raw.Write(func(fd uintptr) bool {
		failed = s.run(fd)
		return true
	})
	s.added, s.rest = 0, nil
	clear(s.list[:]) // what lies there is not the sender's to keep
	clear(s.vec[:])
	return errors.Join(err, failed)
}

func (s *sender) run(fd uintptr) error {
	for len(s.rest) > 0 {
		n, errno := s.once(fd)
		switch errno {
		case 0:
			s.sent(n)
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

// sent notes that n more bytes are out.
func (s *sender) sent(n int) {
	for n > 0 {
		k := min(n, len(s.rest[0]))
		n -= k
		if s.rest[0] = s.rest[0][k:]; len(s.rest[0]) == 0 {
			s.rest = s.rest[1:]
		}
	}
}

// copiedSoon is up to how many bytes the kernel copies in a moment.
const copiedSoon = 512 << 10

// once is one call of the kernel.
func (s *sender) once(fd uintptr) (int, syscall.Errno) {
	k, total := 0, 0
	for ; k < len(s.rest) && total < piece; k++ {
		p := s.rest[k][:min(len(s.rest[k]), piece-total)]
		s.vec[k].Base = &p[0]
		s.vec[k].SetLen(len(p))
		total += len(p)
	}
	s.msg = unix.Msghdr{Iov: &s.vec[0]}
	s.msg.SetIovlen(k)
	if total <= copiedSoon {
		n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&s.msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		return int(n), errno
	}
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
