package tcp

import (
	"container/list"
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

// receive fills pieces, in order, with what there is to receive, at least a byte,
// and returns how many bytes that is. With all it waits until they are full. There
// are no more pieces than a batch has, and none is empty.
func (w *wire) receive(pieces [][]byte, all bool) (int, error) {
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
	flags := unix.MSG_WAITALL
	if !all {
		if got, ok := w.receiveSoon(); ok {
			return got, nil
		}
		flags = 0
	}
	for {
		got, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(w.fd), uintptr(unsafe.Pointer(&w.msg)), uintptr(flags))
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
