package netio

import (
	"errors"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Appender takes the bytes of a value in the order in which they arrive.
type Appender interface {
	// Append copies p.
	Append(p []byte)
}

// result turns that of a system call which was not interrupted into n or an
// error: ErrStalled where there was nothing to do.
func result(call string, n uintptr, errno unix.Errno) (int, error) {
	switch errno {
	case 0:
		return int(n), nil
	case unix.EAGAIN:
		return 0, ErrStalled
	}
	return 0, os.NewSyscallError(call, errno)
}

// received is result where no byte at all is the end of the stream.
func received(n uintptr, errno unix.Errno) (int, error) {
	if n == 0 && errno == 0 {
		return 0, io.EOF
	}
	return result("recv", n, errno)
}

// receive receives what is there; ErrStalled when that is nothing.
func (c *Conn) receive(p []byte) (int, error) {
	if c.inbox != nil {
		return c.inbox.receive(c.fd, p)
	}
	return c.receiveBytes(p)
}

// receiveBytes is receive in the middle of a value, where no descriptors are
// expected: the kernel drops those that come.
func (c *Conn) receiveBytes(p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(c.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return received(n, errno)
		}
	}
}

// BeginValue is called before the bytes of a value, so many, are received. The rest
// of its command may not take for ever either: it holds room.
func (c *Conn) BeginValue(size int64) {
	c.exchanged += size
	c.moved = false
	c.Patience = StallDeadline
}

// Pour appends the next n bytes that the client sends to dst.
func (c *Conn) Pour(n int64, dst Appender) error {
	c.spin.arriving.Add(1)
	defer c.spin.arriving.Add(-1)
	if k := min(int64(len(c.pushback)), n); k > 0 {
		dst.Append(c.pushback[:k])
		c.pushback = c.pushback[k:]
		n -= k
	}
	for n > 0 {
		k, err := c.pourSome(n, dst)
		if n -= k; n == 0 || err != nil {
			return err
		}
		if err := c.awaitMore(); err != nil {
			return err
		}
	}
	return nil
}

// awaitMore waits for a client in the middle of a value.
func (c *Conn) awaitMore() error {
	switch seen := c.spin.watch(&c.spinCredit, 1, c.comes); {
	case seen == watchedData:
		return nil
	case seen == watchedInVain && !c.moved: // who had begun is not expected to pause
		moveAway()
		c.moved = true
		return nil
	}
	return c.await()
}

// Gather receives bytes of a value that has no room yet, until p is full of them;
// n of them are there.
func (c *Conn) Gather(p []byte, n int) error {
	c.spin.arriving.Add(1)
	defer c.spin.arriving.Add(-1)
	n += c.takePushback(p[n:])
	for n < len(p) {
		k, err := c.receiveBytes(p[n:])
		if n += k; errors.Is(err, ErrStalled) {
			err = c.awaitMore()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Discard receives n bytes that nobody wants.
func (c *Conn) Discard(n int64) error {
	_, err := io.CopyN(io.Discard, c, n)
	return err
}

// pourSome appends what has come of the next n bytes, and returns how much. It
// holds a bounce no longer than that takes: clients that pause have none.
func (c *Conn) pourSome(n int64, dst Appender) (poured int64, err error) {
	shelf, p, err := perCore.take()
	if err != nil {
		return 0, err
	}
	defer shelf.give(p)
	for at := 0; ; {
		k, err := c.receiveBytes(p[at:min(int64(len(p)), int64(at)+n-poured)])
		at, poured = at+k, poured+int64(k)
		if err == nil && at < len(p) && poured < n {
			continue
		}
		// What has come goes to its place when nothing more is there, while
		// the client sends on.
		dst.Append(p[:at])
		at = 0
		switch {
		case errors.Is(err, ErrStalled):
			return poured, nil
		case err != nil || poured == n:
			return poured, err
		}
	}
}

// await waits for a client in the middle of a value: for a moment in the kernel,
// then without a thread. One that pauses for long does not keep others from
// watching.
func (c *Conn) await() error {
	leave, ok := c.enter()
	if ok && c.pollTimed(linger) {
		<-leave
		return nil
	}
	c.spin.arriving.Add(-1)
	defer c.spin.arriving.Add(1)
	if ok {
		came := c.poll(threadPatience)
		if <-leave; came {
			return nil
		}
	}
	if err := c.poller.wait(c, readEvents, StallDeadline); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return ErrStalled
}
