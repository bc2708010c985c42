package netio

import (
	"errors"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// sendMost is the most that one system call sends.
	sendMost = 4 << 20

	// sendAtOnce is up to how many bytes are copied in a moment.
	sendAtOnce = 256 << 10

	// maxVec is how many buffers one system call takes (IOV_MAX).
	maxVec = 1024
)

// Write implements io.Writer.
func (c *Conn) Write(p []byte) (int, error) {
	n := len(p)
	return n, c.Writev([][]byte{p})
}

// Writev writes all buffers in order. When it fails, some may be out: the
// connection is of no use then. A client that does not read is waited for without a
// thread, until it counts as stalled (ErrStalled).
func (c *Conn) Writev(bufs [][]byte) error {
	skip := 0 // bytes of bufs[0] that are out
	for len(bufs) > 0 {
		total := c.gather(bufs, skip)
		if total == 0 {
			return nil
		}
		n, err := c.sendSoon(total)
		if err != nil {
			return err
		}
		for n += skip; len(bufs) > 0 && n >= len(bufs[0]); bufs = bufs[1:] {
			n -= len(bufs[0])
		}
		skip = n
	}
	return nil
}

// gather has c.vec refer to the first buffers, but for skip bytes of the first one: what one
// system call sends. It returns how many bytes that are.
func (c *Conn) gather(bufs [][]byte, skip int) (total int) {
	c.vec = c.vec[:0]
	for i, b := range bufs[:min(len(bufs), maxVec)] {
		if i == 0 {
			b = b[skip:]
		}
		if b = b[:min(len(b), sendMost-total)]; len(b) > 0 {
			total += len(b)
			v := unix.Iovec{Base: &b[0]}
			v.SetLen(len(b))
			c.vec = append(c.vec, v)
		}
	}
	return total
}

// sendSoon sends some of c.vec's bytes, which are so many.
func (c *Conn) sendSoon(bytes int) (int, error) {
	c.countSent(bytes)
	if bytes <= sendAtOnce {
		if n, err := c.sendVecNow(); !errors.Is(err, ErrStalled) {
			return n, err
		}
	}
	n, err := c.sendVec()
	if errors.Is(err, ErrStalled) {
		return c.sendLater(c.sendVec)
	}
	return n, err
}

// sendLater returns what send does when there is room.
func (c *Conn) sendLater(send func() (int, error)) (n int, err error) {
	err = c.retry(func() error {
		n, err = send()
		return err
	})
	return n, err
}

// retry calls send again each time that there may be room to send more, until it
// returns something else than ErrStalled.
func (c *Conn) retry(send func() error) error {
	limit := StallDeadline
	if n := c.borrowed(); n > 0 {
		if c.poller.stalled.Take(n, c.own) {
			defer c.poller.stalled.Give(n, c.own)
		} else {
			limit = hurriedDeadline
		}
	}
	end := time.Now().Add(limit)
	if !c.Until.IsZero() && c.Until.Before(end) {
		end = c.Until
	}
	for {
		if err := c.poller.awaitRoom(c, time.Until(end)); err != nil {
			return err
		}
		if err := send(); !errors.Is(err, ErrStalled) {
			return err
		}
	}
}

func (c *Conn) borrowed() int64 {
	if c.Borrowed == nil {
		return 0
	}
	return c.Borrowed()
}

// countSent counts bytes that are about to be sent. Who was sent some gets a send
// buffer of a size that the limits allow.
func (c *Conn) countSent(bytes int) {
	if bytes >= watchedReply {
		c.exchanged += int64(bytes)
	}
	c.sent += int64(bytes)
	if !c.bufferSet && c.sent >= wideFrom {
		c.poller.buffers.decide(c)
	}
}

// sendVec sends some of c.vec's bytes, and waits in the kernel for room for a
// moment.
func (c *Conn) sendVec() (int, error) {
	leave := c.enterSoon()
	defer func() { <-leave }()
	msg := unix.Msghdr{Iov: &c.vec[0]}
	msg.SetIovlen(len(c.vec))
	for {
		n, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL)
		if errno != unix.EINTR {
			return result("send", n, errno)
		}
	}
}

// sendVecNow sends what there is room for of c.vec's bytes without waiting; ErrStalled when
// that is nothing. It is for sendAtOnce at most: Go's scheduler does not see it, see
// cpus.TryKeepPlace.
func (c *Conn) sendVecNow() (int, error) {
	msg := unix.Msghdr{Iov: &c.vec[0]}
	msg.SetIovlen(len(c.vec))
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if errno != unix.EINTR {
			return result("send", n, errno)
		}
	}
}

// sendNow is sendVecNow of one buffer, which is not empty.
func (c *Conn) sendNow(p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(c.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return result("send", n, errno)
		}
	}
}
