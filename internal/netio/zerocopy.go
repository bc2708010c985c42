package netio

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// pipeBytes is how much a pipe is asked to refer to at a time: what the kernel
	// lets everybody ask for.
	pipeBytes = 1 << 20

	// keepPipes bounds the pipes that are kept. All of a user's may refer to 64 MiB
	// together before the kernel makes new ones small.
	keepPipes = 32
)

// ErrNotZeroCopy means that the kernel does not take memory by reference: it is to
// be copied.
var ErrNotZeroCopy = errors.New("server: memory is not taken by reference")

// splicePipe is a pipe, by which the kernel lets a socket refer to memory. One goroutine
// uses it at a time; it is empty between uses.
type splicePipe struct{ in, out int }

var splicePipes = make(chan splicePipe, keepPipes)

func takePipe() (splicePipe, error) {
	select {
	case l := <-splicePipes:
		return l, nil
	default:
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return splicePipe{}, ErrNotZeroCopy // no descriptors left: copying needs none
	}
	l := splicePipe{in: fds[1], out: fds[0]}
	_, _ = unix.FcntlInt(uintptr(l.in), unix.F_SETPIPE_SZ, pipeBytes) // a smaller one does
	return l, nil
}

// givePipe keeps an empty pipe for the next.
func givePipe(l splicePipe) {
	select {
	case splicePipes <- l:
	default:
		l.close()
	}
}

func (l splicePipe) close() {
	_ = unix.Close(l.in)
	_ = unix.Close(l.out)
}

// SendZeroCopy writes p so that the socket refers to its memory instead of a copy
// of it, and returns how much of it is out. What p was must stay until the reader
// has it, which nothing reports. ErrNotZeroCopy: the rest of p can be written as
// usual.
func (c *Conn) SendZeroCopy(p []byte) (sent int, err error) {
	c.countSent(len(p))
	some := func() error {
		n, err := c.spliceSome(p[sent:])
		if sent += n; n > 0 && errors.Is(err, ErrStalled) {
			return nil // it is read, if slowly
		}
		return err
	}
	for sent < len(p) && err == nil {
		if err = some(); errors.Is(err, ErrStalled) {
			err = c.retry(some)
		}
	}
	return sent, err
}

// spliceSome is SendZeroCopy until the client does not read for a moment:
// ErrStalled. Whoever waits for it has neither thread nor pipe.
func (c *Conn) spliceSome(p []byte) (sent int, err error) {
	leave := c.enterSoon()
	defer func() { <-leave }()
	pipe, err := takePipe()
	if err != nil {
		return 0, err
	}
	for sent < len(p) {
		n, err := pipe.load(p[sent:])
		for out := 0; err == nil && out < n; {
			var k int
			k, err = pipe.unload(c.fd, n-out)
			out, sent = out+k, sent+k
		}
		if err != nil {
			pipe.close() // it may not be empty
			return sent, err
		}
	}
	givePipe(pipe)
	return sent, nil
}

// load has the pipe, which is empty, refer to the first bytes of p.
func (l splicePipe) load(p []byte) (int, error) {
	v := unix.Iovec{Base: &p[0]}
	v.SetLen(len(p))
	for {
		n, _, errno := unix.Syscall6(unix.SYS_VMSPLICE, uintptr(l.in), uintptr(unsafe.Pointer(&v)), 1, unix.SPLICE_F_NONBLOCK, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0 || n == 0:
			return 0, ErrNotZeroCopy
		default:
			return int(n), nil
		}
	}
}

// unload hands at most n bytes of what the pipe refers to on to a socket.
func (l splicePipe) unload(socket, n int) (int, error) {
	for {
		k, _, errno := unix.Syscall6(unix.SYS_SPLICE, uintptr(l.out), 0, uintptr(socket), 0, uintptr(n), unix.SPLICE_F_MORE)
		switch errno {
		case unix.EINTR:
			continue
		case 0:
			if k == 0 {
				return 0, ErrNotZeroCopy
			}
		case unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS, unix.EPERM:
			return 0, ErrNotZeroCopy
		}
		return result("splice", k, errno)
	}
}
