package tcp

import (
	"io"
	"net"
	"os"
	"sync"
	"unsafe"

	"cascadekv/internal/rawfd"

	"golang.org/x/sys/unix"
)

// wire is the descriptor of a payload stream at the rank that reads. Reads and
// writes wait in the kernel, with their thread. One goroutine uses it at a time;
// interrupt may be called from any.
type wire struct {
	fd  int
	vec [2]unix.Iovec // of receive; here because the kernel is given its address
	msg unix.Msghdr

	mu     sync.Mutex // guards fd against interrupt after close
	closed bool
}

// newWire takes nc's descriptor over; nc is closed in any case.
func newWire(nc net.Conn) (*wire, error) {
	fd, err := rawfd.Take(nc)
	if err != nil {
		return nil, err
	}
	return &wire{fd: fd}, nil
}

// idle reports whether a wire between two reads is as it should be: open, with
// nothing to receive.
func (w *wire) idle() bool {
	var b [1]byte
	_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(w.fd), uintptr(unsafe.Pointer(&b)), 1,
		unix.MSG_DONTWAIT|unix.MSG_PEEK, 0, 0)
	return errno == unix.EAGAIN
}

// send writes all of p, which is short.
func (w *wire) send(p []byte) error {
	for len(p) > 0 {
		n, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(w.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)),
			unix.MSG_NOSIGNAL, 0, 0)
		switch errno {
		case 0:
			p = p[n:]
		case unix.EINTR:
		default:
			return os.NewSyscallError("send", errno)
		}
	}
	return nil
}

// receive fills head and as much of body as came with its end. It returns how
// many bytes of body that is.
func (w *wire) receive(head, body []byte) (int, error) {
	for got := 0; ; {
		w.vec[0].Base = &head[got]
		w.vec[0].SetLen(len(head) - got)
		w.msg = unix.Msghdr{Iov: &w.vec[0]}
		w.msg.SetIovlen(1)
		if len(body) > 0 {
			w.vec[1].Base = &body[0]
			w.vec[1].SetLen(len(body))
			w.msg.SetIovlen(2)
		}
		n, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(w.fd), uintptr(unsafe.Pointer(&w.msg)), 0)
		w.vec[1].Base = nil // what lies there is not the wire's to keep
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return 0, os.NewSyscallError("recv", errno)
		case n == 0:
			return 0, io.ErrUnexpectedEOF
		}
		if errno == 0 {
			got += int(n)
		}
		if got >= len(head) {
			return got - len(head), nil
		}
	}
}

// piece is the most that one call of the kernel is asked for.
const piece = 256 << 20

// fill receives exactly p.
func (w *wire) fill(p []byte) error {
	for len(p) > 0 {
		want := min(len(p), piece)
		n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(w.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(want),
			unix.MSG_WAITALL, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return os.NewSyscallError("recv", errno)
		case n == 0:
			return io.ErrUnexpectedEOF
		default:
			p = p[n:]
		}
	}
	return nil
}

// interrupt ends whatever waits on the wire, for good.
func (w *wire) interrupt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		_ = unix.Shutdown(w.fd, unix.SHUT_RDWR) // fails when the peer is gone: just as well
	}
}

func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		_ = unix.Close(w.fd) // what the kernel could complain of, nobody can mend
	}
}
