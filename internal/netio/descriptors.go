package netio

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxDescriptors is how many descriptors wait for their command at a time:
// those of one CASCADE.REGION.
const maxDescriptors = 2

// descriptorInbox receives the bytes of a unix socket together with the descriptors
// that came with them (SCM_RIGHTS). It keeps them until a command takes them.
type descriptorInbox struct {
	fds []int
	msg unix.Msghdr
	vec unix.Iovec
	oob [32]byte // CmsgSpace of maxDescriptors, and no more
}

// receive receives what is there; ErrStalled when that is nothing. The kernel ends
// it behind the first bytes that bring descriptors.
func (b *descriptorInbox) receive(fd int, p []byte) (int, error) {
	for {
		b.vec.Base = &p[0]
		b.vec.SetLen(len(p))
		b.msg = unix.Msghdr{Iov: &b.vec, Control: &b.oob[0]}
		b.msg.SetIovlen(1)
		b.msg.SetControllen(unix.CmsgSpace(4 * maxDescriptors))
		n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.msg)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		b.vec.Base = nil
		if errno == unix.EINTR {
			continue
		}
		if errno == 0 && b.msg.Controllen > 0 {
			b.keep(b.oob[:b.msg.Controllen])
		}
		return received(n, errno)
	}
}

// keep adds the descriptors of control messages. What there is no place for is
// closed.
func (b *descriptorInbox) keep(oob []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return // the kernel wrote them
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // of another kind
		}
		for _, fd := range fds {
			if len(b.fds) == maxDescriptors {
				_ = unix.Close(fd)
				continue
			}
			b.fds = append(b.fds, fd)
		}
	}
}

// TakeDescriptors hands over the first n descriptors that came, for the caller
// to close; false, and none, when there are fewer.
func (c *Conn) TakeDescriptors(n int) ([]int, bool) {
	if c.inbox == nil || len(c.inbox.fds) < n {
		return nil, false
	}
	fds := append([]int(nil), c.inbox.fds[:n]...)
	c.inbox.fds = append(c.inbox.fds[:0], c.inbox.fds[n:]...)
	return fds, true
}

// DropDescriptors closes those that no command took.
func (c *Conn) DropDescriptors() {
	if c.inbox == nil {
		return
	}
	for _, fd := range c.inbox.fds {
		_ = unix.Close(fd)
	}
	c.inbox.fds = c.inbox.fds[:0]
}

// Descriptors returns those that no command took. They stay the connection's.
func (c *Conn) Descriptors() []int {
	if c.inbox == nil {
		return nil
	}
	return c.inbox.fds
}

// ReceivesDescriptors reports whether descriptors that come are kept.
func (c *Conn) ReceivesDescriptors() bool { return c.inbox != nil }

// KeepDescriptor takes over a descriptor as one that came, or closes it.
func (c *Conn) KeepDescriptor(fd int) {
	if c.inbox == nil {
		_ = unix.Close(fd)
		return
	}
	c.inbox.fds = append(c.inbox.fds, fd)
}

// WithDescriptor is a Conn that sends a copy of a descriptor with the first byte
// written to it.
type WithDescriptor struct {
	*Conn
	Send int // the descriptor
}

// Write implements io.Writer, for one call.
func (d WithDescriptor) Write(p []byte) (int, error) {
	n, err := d.sendFirst(p)
	if errors.Is(err, ErrStalled) {
		n, err = d.sendLater(func() (int, error) { return d.sendFirst(p) })
	}
	if err != nil || n == len(p) {
		return n, err
	}
	more, err := d.Conn.Write(p[n:])
	return n + more, err
}

// sendFirst sends the descriptor with at least one byte of p.
func (d WithDescriptor) sendFirst(p []byte) (int, error) {
	leave := d.enterSoon()
	defer func() { <-leave }()
	for {
		n, err := unix.SendmsgN(d.fd, p, unix.UnixRights(d.Send), nil, unix.MSG_NOSIGNAL)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return 0, ErrStalled
		case err != nil:
			return 0, os.NewSyscallError("send", err)
		default:
			return n, nil
		}
	}
}
