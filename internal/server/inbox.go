package server

import (
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxDescriptors is how many descriptors wait for their command at a time:
// those of one CASCADE.REGION.
const maxDescriptors = 2

// inbox receives the bytes of a unix socket together with the descriptors that
// came with them (SCM_RIGHTS). It keeps them until a command takes them.
type inbox struct {
	fds []int
	msg unix.Msghdr
	vec unix.Iovec
	oob [32]byte // CmsgSpace of maxDescriptors, and no more
}

// recv receives what is there; errStalled when that is nothing. The kernel ends
// it behind the first bytes that bring descriptors.
func (b *inbox) recv(fd int, p []byte) (int, error) {
	for {
		b.vec.Base = &p[0]
		b.vec.SetLen(len(p))
		b.msg = unix.Msghdr{Iov: &b.vec, Control: &b.oob[0]}
		b.msg.SetIovlen(1)
		b.msg.SetControllen(unix.CmsgSpace(4 * maxDescriptors))
		n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.msg)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		b.vec.Base = nil
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return 0, errStalled
		case errno != 0:
			return 0, os.NewSyscallError("recv", errno)
		}
		if b.msg.Controllen > 0 {
			b.keep(b.oob[:b.msg.Controllen])
		}
		if n == 0 {
			return 0, io.EOF
		}
		return int(n), nil
	}
}

// keep adds the descriptors of control messages. What there is no place for is
// closed.
func (b *inbox) keep(oob []byte) {
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

// takeDescriptors hands over the first n descriptors that came, for the caller
// to close; false, and none, when there are fewer.
func (w *wire) takeDescriptors(n int) ([]int, bool) {
	if w.shared == nil || len(w.shared.fds) < n {
		return nil, false
	}
	fds := append([]int(nil), w.shared.fds[:n]...)
	w.shared.fds = append(w.shared.fds[:0], w.shared.fds[n:]...)
	return fds, true
}

// dropDescriptors closes those that no command took.
func (w *wire) dropDescriptors() {
	if w.shared == nil {
		return
	}
	for _, fd := range w.shared.fds {
		_ = unix.Close(fd)
	}
	w.shared.fds = w.shared.fds[:0]
}

// hungUp reports whether the client has shut its end down for writing, or is
// gone.
func (w *wire) hungUp() bool {
	fds := [1]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds[:], 0)
	return n > 0 && err == nil
}
