package server

import (
	"errors"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mostBacklog is how many bytes of answers are kept for a client that sends and
// does not read; with as many nothing more is read from it until it reads.
const mostBacklog = 64 << 10

// backlog is a wire to which short answers are written as far as it takes them.
// The rest is kept, in order, and goes out while the client's next command is
// waited for: a client may send all of a long pipeline before it reads, and a unix
// socket has room for some hundred answers only, however short they are.
type backlog struct{ *wire }

// Write implements io.Writer. It keeps a copy of what it keeps of p.
func (b backlog) Write(p []byte) (int, error) {
	b.sends(len(p))
	if len(b.unsent) == 0 {
		n, err := b.sendNow(p)
		if err != nil && !errors.Is(err, errStalled) {
			return n, err
		}
		if n == len(p) {
			return n, nil
		}
		b.unsentUntil = time.Now().Add(stallDeadline)
		b.unsent = append(b.unsent, p[n:]...)
		return len(p), nil
	}
	b.unsent = append(b.unsent, p...)
	return len(p), b.sendUnsent()
}

// sendUnsent sends what there is room for.
func (w *wire) sendUnsent() error {
	n, err := w.sendNow(w.unsent)
	if n > 0 {
		w.unsentUntil = time.Now().Add(stallDeadline)
	}
	if w.unsent = w.unsent[n:]; len(w.unsent) == 0 {
		w.unsent = nil
	}
	if errors.Is(err, errStalled) && time.Now().Before(w.unsentUntil) {
		return nil
	}
	return err
}

// settle sends all that was kept, and waits for room as long as the client goes on
// reading.
func (w *wire) settle() error {
	for len(w.unsent) > 0 {
		if err := w.lot.awaitRoom(w, time.Until(w.unsentUntil)); err != nil {
			return err
		}
		if err := w.sendUnsent(); err != nil {
			return err
		}
	}
	return nil
}

// sendNow sends what there is room for without waiting; errStalled when that is
// nothing. p is not empty.
func (w *wire) sendNow(p []byte) (int, error) {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(w.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0)
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

// flushSoon is flush for a client that goes on sending: short answers that it does
// not read are kept for a while.
func (c *conn) flushSoon() error {
	if !c.authed || len(c.views) > 0 || c.wr.Pending()+int64(len(c.wire.unsent)) > mostBacklog {
		return c.flush()
	}
	c.oldest = time.Time{}
	if c.wr.Pending() == 0 {
		return nil
	}
	return c.wr.Flush(backlog{c.wire})
}
