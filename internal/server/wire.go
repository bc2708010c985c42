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

	"golang.org/x/sys/unix"

	"cascadekv/internal/rawfd"
)

const (
	// linger is how long a connection that was just served waits for its next
	// command in the kernel before it is parked: a client in a loop is answered
	// without the detour through the parking lot.
	linger = 5 * time.Millisecond

	// maxThreads bounds the connections that wait in the kernel at once, each
	// with a thread; parked ones have none. It is less where the kernel allows few
	// threads (connectionThreads). ownThreads are more, for the rank's own user on
	// the unix socket.
	maxThreads = 1024
	ownThreads = 64

	// threadPatience is how long a connection waits in the kernel, with a thread,
	// for a client that is in the middle of a value or of a reply; then it is
	// parked until there is more to receive, or room to send more.
	threadPatience = 100 * time.Millisecond

	// sendMost is the most that one system call sends.
	sendMost = 4 << 20

	// hurriedDeadline is stallDeadline while replies that are not read borrow
	// more than what they may.
	hurriedDeadline = 5 * time.Second

	// stallDeadline bounds each wait for a client in the middle of a value or
	// of a reply.
	stallDeadline = 60 * time.Second
)

// errStalled means that a client did not go on with what it had begun.
var errStalled = errors.New("server: client stalled in the middle of a value or reply")

var (
	threads      = make(chan struct{}, connectionThreads())
	threadsOfOwn = make(chan struct{}, min(ownThreads, cap(threads)))
)

// wire is the descriptor of one connection, outside the runtime's poller: that
// would wake a thread for every piece of a value that arrives, though nobody
// waits there. Between commands a wire is parked; in the middle of one its
// goroutine waits in the kernel. One goroutine reads and writes; interrupt may
// be called from any.
type wire struct {
	fd    int
	lot   *parking
	spin  *spinner
	spins patience

	// first is read before what the socket has.
	first []byte

	// idle tells whether the next byte is the first of a command.
	idle func() bool

	// patience bounds the wait in the parking lot for what comes next; 0 means for
	// ever.
	patience time.Duration

	// until is when a client must have authenticated; zero: it has.
	until time.Time

	moved   bool         // its thread moved away while it waited for the value that arrives
	own     bool         // of the rank's own user, on the unix socket
	local   bool         // a unix socket
	borrows func() int64 // bytes of values that the reply which is sent borrows
	sent    int64        // bytes, ever
	decided bool         // whether its send buffer is wide
	wide    int64        // bytes that the buffer counts in lot.flight

	vec []unix.Iovec

	shared *inbox // of descriptors; nil on TCP, which brings none

	unsent      []byte    // kept answers, see backlog
	unsentUntil time.Time // when the client counts as stalled that does not read them

	mu     sync.Mutex // guards fd against interrupt after close
	closed bool
}

// newWire takes nc's descriptor over; nc is closed in any case.
func newWire(nc net.Conn, lot *parking, spin *spinner) (*wire, error) {
	fd, err := rawfd.Take(nc)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	withoutPace(fd, nc)
	_, local := nc.(*net.UnixConn)
	return wireOf(fd, local, lot, spin)
}

// wireOf is a wire of a blocking descriptor, which it takes over.
func wireOf(fd int, local bool, lot *parking, spin *spinner) (*wire, error) {
	w := &wire{fd: fd, lot: lot, spin: spin, spins: fullPatience, local: local}
	if local {
		w.shared = &inbox{}
	}
	stall := unix.NsecToTimeval(threadPatience.Nanoseconds())
	if err := unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &stall); err != nil {
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
	for {
		if w.lot.halt.Load() != nil && w.idle() {
			return 0, errHalted
		}
		if len(w.unsent) > 0 {
			if err := w.sendUnsent(); err != nil {
				return 0, err
			}
		}
		n, err := w.recv(p)
		if !errors.Is(err, errStalled) {
			return n, err
		}
		if len(w.unsent) == 0 && (w.spin.watch(w, 0) == came || w.lingers()) {
			continue
		}
		if err := w.lot.parkFor(w, w.wants(), w.waitsFor()); err != nil {
			return 0, err
		}
	}
}

// waitsFor is how long to wait for what comes next: for a command without end,
// for the rest of one until the client counts as stalled; 0 is without end.
func (w *wire) waitsFor() time.Duration {
	d := w.patience
	if d <= 0 && w.idle != nil && !w.idle() {
		d = stallDeadline
	}
	if !w.until.IsZero() {
		left := max(time.Until(w.until), 1)
		if d <= 0 || left < d {
			d = left
		}
	}
	if len(w.unsent) > 0 {
		left := max(time.Until(w.unsentUntil), 1)
		if d <= 0 || left < d {
			d = left
		}
	}
	return d
}

// wants is what a wire waits for that waits for what comes next.
func (w *wire) wants() uint32 {
	if len(w.unsent) > 0 {
		return unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLOUT
	}
	return unix.EPOLLIN | unix.EPOLLRDHUP
}

// enter takes a place among those that wait in the kernel with a thread, if one
// is free; leave gives it back.
func (w *wire) enter() (leave chan struct{}, ok bool) {
	select {
	case threads <- struct{}{}:
		return threads, true
	default:
	}
	if w.own {
		select {
		case threadsOfOwn <- struct{}{}:
			return threadsOfOwn, true
		default:
		}
	}
	return nil, false
}

// enterSoon is enter for those who send: who has a place to send has it for
// moments.
func (w *wire) enterSoon() (leave chan struct{}) {
	if leave, ok := w.enter(); ok {
		return leave
	}
	if w.own {
		select {
		case threads <- struct{}{}:
			return threads
		case threadsOfOwn <- struct{}{}:
			return threadsOfOwn
		}
	}
	threads <- struct{}{}
	return threads
}

// lingers waits a moment for what comes next; false when there is nothing.
func (w *wire) lingers() bool {
	leave, ok := w.enter()
	if !ok {
		return false
	}
	defer func() { <-leave }()
	return w.pollTimed(linger)
}

// pollTimed is poll for those who would have liked to watch.
func (w *wire) pollTimed(d time.Duration) bool {
	began := time.Now()
	came := w.poll(d)
	if came {
		w.spin.slept(w, time.Since(began))
	}
	return came
}

// poll reports whether there is something to read, the end included, within d;
// or may be, where a signal came.
func (w *wire) poll(d time.Duration) bool {
	if d <= linger && asleep.keep() {
		defer asleep.leave()
		return w.pollUntold(d)
	}
	fd, limit := w.readable(), unix.NsecToTimespec(d.Nanoseconds())
	n, _, errno := unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fd)), 1, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	return errno == unix.EINTR || errno == 0 && n > 0
}

// pollUntold is poll without telling Go's scheduler. The two calls stay apart:
// only in the arguments of a system call itself does a pointer keep its memory.
func (w *wire) pollUntold(d time.Duration) bool {
	fd, limit := w.readable(), unix.NsecToTimespec(d.Nanoseconds())
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fd)), 1, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	return errno == unix.EINTR || errno == 0 && n > 0
}

func (w *wire) readable() unix.PollFd { return unix.PollFd{Fd: int32(w.fd), Events: unix.POLLIN} }

// recv receives what is there; errStalled when that is nothing.
func (w *wire) recv(p []byte) (int, error) {
	if w.shared != nil {
		return w.shared.recv(w.fd, p)
	}
	return w.recvBytes(p)
}

// recvBytes is recv in the middle of a value, where no descriptors are expected:
// the kernel drops those that come.
func (w *wire) recvBytes(p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(w.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
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
	skip := 0 // bytes of bufs[0] that are out
	for len(bufs) > 0 {
		w.vec = w.vec[:0]
		total := 0
		for i, b := range bufs[:min(len(bufs), maxVec)] {
			if i == 0 {
				b = b[skip:]
			}
			if b = b[:min(len(b), sendMost-total)]; len(b) > 0 {
				total += len(b)
				v := unix.Iovec{Base: &b[0]}
				v.SetLen(len(b))
				w.vec = append(w.vec, v)
			}
		}
		if len(w.vec) == 0 {
			return nil
		}
		n, err := w.sendSoon(total)
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

// sendSoon sends some of w.vec's bytes. A client that does not read is waited for
// without a thread, until it counts as stalled.
func (w *wire) sendSoon(bytes int) (int, error) {
	w.sends(bytes)
	n, err := w.sendOnce()
	if !errors.Is(err, errStalled) {
		return n, err
	}
	err = w.retry(func() error {
		n, err = w.sendOnce()
		return err
	})
	return n, err
}

func (w *wire) sendOnce() (int, error) {
	leave := w.enterSoon()
	defer func() { <-leave }()
	return w.sendVec()
}

// retry calls send again each time that there may be room to send more, until it
// returns something else than errStalled.
func (w *wire) retry(send func() error) error {
	limit := stallDeadline
	if n := w.borrowed(); n > 0 {
		if w.lot.stalled.Take(n, w.own) {
			defer w.lot.stalled.Give(n, w.own)
		} else {
			limit = hurriedDeadline
		}
	}
	end := time.Now().Add(limit)
	if !w.until.IsZero() && w.until.Before(end) {
		end = w.until
	}
	for {
		if err := w.lot.awaitRoom(w, time.Until(end)); err != nil {
			return err
		}
		if err := send(); !errors.Is(err, errStalled) {
			return err
		}
	}
}

func (w *wire) borrowed() int64 {
	if w.borrows == nil {
		return 0
	}
	return w.borrows()
}

// sends counts bytes that are about to be sent. Who was sent some gets a send
// buffer of a size that the limits allow.
func (w *wire) sends(bytes int) {
	w.sent += int64(bytes)
	if !w.decided && w.sent >= wideFrom {
		w.lot.flight.decide(w)
	}
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
	w.lot.flight.giveBack(w)
	w.dropDescriptors()
	_ = unix.Close(w.fd) // what the kernel could complain of, nobody can mend
}
