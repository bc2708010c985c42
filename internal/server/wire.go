package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
	"unsafe"

	"cascadekv/internal/rawfd"

	"golang.org/x/sys/unix"
)

const (
	// bulkPiece is the most that one read of a value asks for, so that what it
	// brings is still in the core's cache when it is checksummed.
	bulkPiece = 256 << 10

	// linger is how long a connection that was just served waits for its next
	// command in the kernel, in milliseconds, before it is parked: a client
	// in a loop is answered without the detour through the parking lot.
	linger = 5

	// maxThreads bounds the connections that wait in the kernel at once, each
	// with a thread; parked ones have none.
	maxThreads = 1024

	// stallDeadline bounds each wait for a client in the middle of a value or
	// of a reply.
	stallDeadline = 60 * time.Second
)

// errStalled means that a client did not go on with what it had begun.
var errStalled = errors.New("server: client stalled in the middle of a value or reply")

var threads = make(chan struct{}, maxThreads)

// wire is the descriptor of one connection, outside the runtime's poller: that
// would wake a thread for every piece of a value that arrives, though nobody
// waits there. Between commands a wire is parked; in the middle of one its
// goroutine waits in the kernel. One goroutine reads and writes; interrupt may
// be called from any.
type wire struct {
	fd  int
	lot *parking

	// meanwhile is set while a value arrives: work to do before a wait for the
	// client, of some microseconds.
	meanwhile func()

	// first is read before what the socket has.
	first []byte

	// idle tells whether the next byte is the first of a command.
	idle func() bool

	// patience bounds the wait for the next command; 0 means for ever.
	patience time.Duration

	vec []unix.Iovec

	shared *inbox // of descriptors; nil on TCP, which brings none

	mu     sync.Mutex // guards fd against interrupt after close
	closed bool
}

// newWire takes nc's descriptor over; nc is closed in any case.
func newWire(nc net.Conn, lot *parking) (*wire, error) {
	fd, err := rawfd.Take(nc)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	_, local := nc.(*net.UnixConn)
	return wireOf(fd, local, lot)
}

// wireOf is a wire of a blocking descriptor, which it takes over.
func wireOf(fd int, local bool, lot *parking) (*wire, error) {
	w := &wire{fd: fd, lot: lot}
	if local {
		w.shared = &inbox{}
	}
	stall := unix.NsecToTimeval(stallDeadline.Nanoseconds())
	err := errors.Join(
		unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &stall),
		unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &stall))
	if err != nil {
		_ = unix.Close(w.fd)
		return nil, fmt.Errorf("server: prepare a connection: %w", err)
	}
	return w, nil
}

// Read implements io.Reader.
func (w *wire) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(w.first) > 0 {
		n := copy(p, w.first)
		w.first = w.first[n:]
		return n, nil
	}
	if w.meanwhile != nil {
		return w.readValue(p[:min(len(p), bulkPiece)])
	}
	for {
		if w.lot.halt.Load() != nil && w.idle() {
			return 0, errHalted
		}
		n, err := w.recv(p, unix.MSG_DONTWAIT)
		if !errors.Is(err, errStalled) {
			return n, err
		}
		if w.lingers() {
			continue
		}
		if err := w.lot.park(w); err != nil {
			return 0, err
		}
	}
}

// readValue reads a piece of a value, which is on its way.
func (w *wire) readValue(p []byte) (int, error) {
	threads <- struct{}{}
	defer func() { <-threads }()
	n, err := w.recv(p, unix.MSG_DONTWAIT)
	if !errors.Is(err, errStalled) {
		return n, err
	}
	w.meanwhile()
	return w.recv(p, 0)
}

// lingers waits a moment for the next command; false when there is none.
func (w *wire) lingers() bool {
	select {
	case threads <- struct{}{}:
		defer func() { <-threads }()
	default:
		return false
	}
	fds := [1]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], linger)
	return n > 0 || errors.Is(err, unix.EINTR)
}

// recv is one receive; errStalled when there was nothing in time.
func (w *wire) recv(p []byte, flags uintptr) (int, error) {
	if w.shared != nil && w.meanwhile == nil {
		return w.shared.recv(w.fd, p, flags)
	}
	for {
		call := unix.Syscall6
		if flags&unix.MSG_DONTWAIT != 0 {
			call = unix.RawSyscall6 // no wait that the scheduler must know of
		}
		n, _, errno := call(unix.SYS_RECVFROM, uintptr(w.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), flags, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			return 0, errStalled
		case errno != 0:
			return 0, os.NewSyscallError("recv", errno)
		case n == 0:
			return 0, io.EOF
		default:
			return int(n), nil
		}
	}
}

// Write implements io.Writer.
func (w *wire) Write(p []byte) (int, error) {
	n := len(p)
	return n, w.Writev([][]byte{p})
}

// maxVec is how many buffers one system call takes (IOV_MAX).
const maxVec = 1024

// Writev writes all buffers in order. What it wrote of them when it fails is
// not told: the connection is of no use then.
func (w *wire) Writev(bufs [][]byte) error {
	threads <- struct{}{}
	defer func() { <-threads }()
	skip := 0 // bytes of bufs[0] that are out
	for len(bufs) > 0 {
		w.vec = w.vec[:0]
		for i, b := range bufs[:min(len(bufs), maxVec)] {
			if i == 0 {
				b = b[skip:]
			}
			if len(b) > 0 {
				v := unix.Iovec{Base: &b[0]}
				v.SetLen(len(b))
				w.vec = append(w.vec, v)
			}
		}
		if len(w.vec) == 0 {
			return nil
		}
		n, err := w.sendVec()
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

func (w *wire) sendVec() (int, error) {
	msg := unix.Msghdr{Iov: &w.vec[0]}
	msg.SetIovlen(len(w.vec))
	for {
		n, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(w.fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, errStalled
		default:
			return 0, os.NewSyscallError("send", errno)
		}
	}
}

// interrupt ends the waits of the connection's goroutine: for commands, or,
// when all is true, for anything.
func (w *wire) interrupt(all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	how := unix.SHUT_RD
	if all {
		how = unix.SHUT_RDWR
	}
	_ = unix.Shutdown(w.fd, how) // fails when the client is gone: just as well
}

func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.lot.forget(w)
	w.dropDescriptors()
	_ = unix.Close(w.fd) // what the kernel could complain of, nobody can mend
}
