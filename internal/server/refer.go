package server

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// laneBytes is how much a pipe is asked to refer to at a time: what the kernel
	// lets everybody ask for.
	laneBytes = 1 << 20

	// keepLanes bounds the pipes that are kept. All of a user's may refer to 64 MiB
	// together before the kernel makes new ones small.
	keepLanes = 32
)

// errNotReferred means that the kernel does not take memory by reference: it is to
// be copied.
var errNotReferred = errors.New("server: memory is not taken by reference")

// lane is a pipe, by which the kernel lets a socket refer to memory. One goroutine
// uses it at a time; it is empty between uses.
type lane struct{ in, out int }

var lanes = make(chan lane, keepLanes)

func takeLane() (lane, error) {
	select {
	case l := <-lanes:
		return l, nil
	default:
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return lane{}, errNotReferred // no descriptors left: copying needs none
	}
	l := lane{in: fds[1], out: fds[0]}
	_, _ = unix.FcntlInt(uintptr(l.in), unix.F_SETPIPE_SZ, laneBytes) // a smaller one does
	return l, nil
}

// giveLane keeps an empty lane for the next.
func giveLane(l lane) {
	select {
	case lanes <- l:
	default:
		l.close()
	}
}

func (l lane) close() {
	_ = unix.Close(l.in)
	_ = unix.Close(l.out)
}

// refer writes p so that the socket refers to its memory instead of a copy of it,
// and tells how much of it is out. What p was must stay until the reader has it,
// which nobody tells. errNotReferred: the rest of p can be written as usual.
func (w *wire) refer(p []byte) (sent int, err error) {
	w.sends(len(p))
	some := func() error {
		n, err := w.referSome(p[sent:])
		if sent += n; n > 0 && errors.Is(err, errStalled) {
			return nil // it is read, if slowly
		}
		return err
	}
	for sent < len(p) && err == nil {
		if err = some(); errors.Is(err, errStalled) {
			err = w.retry(some)
		}
	}
	return sent, err
}

// referSome is refer until the client does not read for a moment: errStalled.
// Whoever waits for it has neither thread nor lane.
func (w *wire) referSome(p []byte) (sent int, err error) {
	leave := w.enterSoon()
	defer func() { <-leave }()
	l, err := takeLane()
	if err != nil {
		return 0, err
	}
	for sent < len(p) {
		n, err := l.load(p[sent:])
		for out := 0; err == nil && out < n; {
			var k int
			k, err = l.unload(w.fd, n-out)
			out, sent = out+k, sent+k
		}
		if err != nil {
			l.close() // it may not be empty
			return sent, err
		}
	}
	giveLane(l)
	return sent, nil
}

// load has the lane, which is empty, refer to the first bytes of p.
func (l lane) load(p []byte) (int, error) {
	v := unix.Iovec{Base: &p[0]}
	v.SetLen(len(p))
	for {
		n, _, errno := unix.Syscall6(unix.SYS_VMSPLICE, uintptr(l.in), uintptr(unsafe.Pointer(&v)), 1, unix.SPLICE_F_NONBLOCK, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0 || n == 0:
			return 0, errNotReferred
		default:
			return int(n), nil
		}
	}
}

// unload hands at most n bytes of what the lane refers to on to a socket.
func (l lane) unload(socket, n int) (int, error) {
	for {
		k, _, errno := unix.Syscall6(unix.SYS_SPLICE, uintptr(l.out), 0, uintptr(socket), 0, uintptr(n), unix.SPLICE_F_MORE)
		switch errno {
		case 0:
			if k == 0 {
				return 0, errNotReferred
			}
			return int(k), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, errStalled
		case unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS, unix.EPERM:
			return 0, errNotReferred
		default:
			return 0, os.NewSyscallError("splice", errno)
		}
	}
}
