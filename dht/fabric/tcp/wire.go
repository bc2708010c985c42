package tcp

import (
	"container/list"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/dht/fabric"
	"cascadekv/internal/rawfd"
)

// wire is the descriptor of a payload stream at the rank that reads. Reads and
// writes wait in the kernel, with their thread, at first unseen by Go's scheduler. One
// goroutine uses it at a time; interrupt may be called from any.
type wire struct {
	fd    int
	life  *life
	rest  *list.Element // of the idle ones; nil: somebody reads
	batch batch
	aside aside
	vec   [2 * fabric.MaxBatch]unix.Iovec // of receive; here because the kernel is given its address
	msg   unix.Msghdr

	mu     sync.Mutex // guards fd against interrupt after close
	closed bool
}

// newWire takes nc's descriptor over, for reads from the peer of l; nc is closed in any case.
func newWire(nc net.Conn, l *life) (*wire, error) {
	fd, err := rawfd.Take(nc)
	if err != nil {
		return nil, err
	}
	return &wire{fd: fd, life: l}, nil
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
	if n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(w.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)),
		unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0); errno == 0 {
		p = p[n:]
	}
	for len(p) > 0 { // the stream has no room, or is of no use
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

// piece is the most that one call of the kernel is asked for.
const piece = 256 << 20

// bulk is how much of a large payload is here before the thread that receives it is
// woken. It would be for each packet: on a fast network that is more work than the copy.
const bulk = 256 << 10

// bulkWait is how long that is waited for, in milliseconds. Kernels before Linux 5.7 do not
// wake it when small packets fill the buffer by what they take around their bytes, and then
// nothing more comes.
const bulkWait = 100

// receiveAll fills p.
func (w *wire) receiveAll(p []byte) error {
	rest := p[w.aside.receive([][]byte{p}):]
	if len(rest) > bulk {
		if err := w.wake(bulk); err != nil {
			return err
		}
		for len(rest) > bulk {
			if err := w.wait(); err != nil {
				return err
			}
			n, err := w.receiveInto(rest, unix.MSG_DONTWAIT)
			if err != nil {
				return err
			}
			rest = rest[n:]
		}
		if err := w.wake(1); err != nil {
			return err
		}
	}
	for len(rest) > 0 {
		n, err := w.receiveInto(rest, unix.MSG_WAITALL)
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// wake has the kernel wake who waits once n bytes are here, or fewer if its buffer
// holds no more.
func (w *wire) wake(n int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, n))
}

// wait waits for what wake says, for bulkWait at most, or the end of the stream.
func (w *wire) wait() error {
	fds := [1]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds[:], bulkWait); err != nil && !errors.Is(err, unix.EINTR) { // interrupt ends it
		return os.NewSyscallError("poll", err)
	}
	return nil
}

// receiveInto receives once; 0: there is nothing yet.
func (w *wire) receiveInto(p []byte, flags int) (int, error) {
	p = p[:min(len(p), piece)]
	n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(w.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), uintptr(flags), 0, 0)
	switch {
	case errno == unix.EINTR || errno == unix.EAGAIN:
		return 0, nil
	case errno != 0:
		return 0, os.NewSyscallError("recv", errno)
	case n == 0:
		return 0, io.ErrUnexpectedEOF
	}
	return int(n), nil
}

// receive fills pieces, in order, with what there is to receive, at least a byte,
// and returns how many bytes that is. There are no more pieces than a batch has, and
// none is empty.
func (w *wire) receive(pieces [][]byte) (int, error) {
	if n := w.aside.receive(pieces); n > 0 {
		return n, nil
	}
	n := 0
	for total := 0; n < len(pieces) && total < piece; n++ {
		p := pieces[n][:min(len(pieces[n]), piece-total)]
		w.vec[n].Base = &p[0]
		w.vec[n].SetLen(len(p))
		total += len(p)
	}
	defer clear(w.vec[:n]) // what lies there is not the wire's to keep
	w.msg = unix.Msghdr{Iov: &w.vec[0]}
	w.msg.SetIovlen(n)
	if got, ok := w.receiveSoon(); ok {
		return got, nil
	}
	for {
		got, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(w.fd), uintptr(unsafe.Pointer(&w.msg)), 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return 0, os.NewSyscallError("recv", errno)
		case got == 0:
			return 0, io.ErrUnexpectedEOF
		default:
			return int(got), nil
		}
	}
}

// receiveSoon fills what w.msg refers to with what comes within a moment; false: that is
// nothing, or the stream is of no use.
func (w *wire) receiveSoon() (int, bool) {
	if w.batch.at > 0 || w.batch.got > 0 { // the rest of the answers mostly is on its way
		if n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(w.fd), uintptr(unsafe.Pointer(&w.msg)), unix.MSG_DONTWAIT); errno == 0 && n > 0 {
			return int(n), true
		}
	}
	awaits(w.fd)
	n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(w.fd), uintptr(unsafe.Pointer(&w.msg)), unix.MSG_DONTWAIT)
	return int(n), errno == 0 && n > 0
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
