package netio

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/admission"
)

// errPollerClosed is what waiting connections get when the server ends.
var errPollerClosed = fmt.Errorf("server: %w", net.ErrClosed)

// readEvents are those of something to read, the end included.
const readEvents = unix.EPOLLIN | unix.EPOLLRDHUP

// Config is what the connections of a poller share.
type Config struct {
	// Spin bounds how long a connection's thread watches for the client's next
	// bytes before it goes to sleep; 0: not at all.
	Spin time.Duration

	// SendBuffers bounds the wide send buffers of all connections, in bytes; 0 is
	// a sixteenth of the machine's memory, or of the control group's, from 64 MiB
	// to 1 GiB.
	SendBuffers int64

	// Stalled bounds what replies borrow that clients do not read; the clients
	// beyond are waited for only shortly.
	Stalled *admission.Allowance
}

// Poller is where connections wait between commands, without a thread each. A
// waiting connection is armed for one event; while it is being served the kernel
// reports nothing of it. It is safe for concurrent use.
type Poller struct {
	epoll   int
	quiesce atomic.Pointer[Quiesce] // nil unless connections are to rest
	spin    spinner
	buffers sendBuffers
	stalled *admission.Allowance
	done    chan struct{}

	mu struct {
		sync.Mutex
		waiters map[int]*waiter // by descriptor; present once it was armed
		begins  chan struct{}   // closed when the next quiesce begins
		closed  bool
	}
}

// waiter is where one connection waits.
type waiter struct {
	woken chan struct{} // capacity 1
	gone  func()        // called when the client hangs up; nil: nothing is
}

// NewPoller starts a poller, for the caller to close.
func NewPoller(o Config) (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("server: %w", os.NewSyscallError("epoll_create1", err))
	}
	p := &Poller{epoll: fd, stalled: o.Stalled, done: make(chan struct{})}
	p.spin.window = o.Spin
	if p.buffers.limit = o.SendBuffers; o.SendBuffers <= 0 {
		p.buffers.limit = defaultBuffers()
	}
	p.mu.waiters, p.mu.begins = map[int]*waiter{}, make(chan struct{})
	go p.watch()
	return p, nil
}

// Arriving returns how many values are being received.
func (p *Poller) Arriving() int { return int(p.spin.arriving.Load()) }

// wait waits for the first of some events of a connection, or until it is hung up.
// It gives up after patience, unless that is 0, with os.ErrDeadlineExceeded.
func (p *Poller) wait(c *Conn, events uint32, patience time.Duration) error {
	woken, err := p.arm(c, events, nil)
	if err != nil {
		return err
	}
	if patience <= 0 {
		<-woken
		return nil
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-woken:
		return nil
	case <-timer.C:
		return os.ErrDeadlineExceeded
	}
}

// awaitRoom waits until more can be sent to a client, or it hung up. It gives up
// after patience, with ErrStalled.
func (p *Poller) awaitRoom(c *Conn, patience time.Duration) error {
	if patience <= 0 {
		return ErrStalled
	}
	err := p.wait(c, unix.EPOLLOUT, patience)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrStalled
	}
	return err
}

// arm arms a connection for the first of some events, which is sent to the channel,
// and has gone called if that is the client's hanging up. What comes may also be
// left over from an earlier call: look.
func (p *Poller) arm(c *Conn, events uint32, gone func()) (<-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, errPollerClosed
	}
	op := unix.EPOLL_CTL_MOD
	at := p.mu.waiters[c.fd]
	if at == nil {
		op = unix.EPOLL_CTL_ADD
		at = &waiter{woken: make(chan struct{}, 1)}
		p.mu.waiters[c.fd] = at
	}
	ev := unix.EpollEvent{Events: events | unix.EPOLLONESHOT, Fd: int32(c.fd)}
	if err := unix.EpollCtl(p.epoll, op, c.fd, &ev); err != nil {
		return nil, fmt.Errorf("server: wait for a client: %w", os.NewSyscallError("epoll_ctl", err))
	}
	at.gone = gone
	return at.woken, nil
}

// HangUp returns a channel to which is sent when the client may have hung up (see
// HungUp), once. The error matches net.ErrClosed when the poller is closed.
func (c *Conn) HangUp() (<-chan struct{}, error) { return c.poller.arm(c, unix.EPOLLRDHUP, nil) }

// OnHangUp has gone called, from another goroutine, should the client hang up
// before the function that is returned is called.
func (c *Conn) OnHangUp(gone func()) (end func()) {
	p := c.poller
	if _, err := p.arm(c, unix.EPOLLRDHUP, gone); err != nil {
		gone()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if at := p.mu.waiters[c.fd]; at != nil {
			at.gone = nil
		}
	}
}

// forget drops a connection that is about to be closed.
func (p *Poller) forget(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.waiters[c.fd] != nil {
		delete(p.mu.waiters, c.fd)
		_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, c.fd, nil) // close does it too
	}
}

// watchEvery bounds how long Close takes, in milliseconds.
const watchEvery = 500

// watch wakes waiting connections.
func (p *Poller) watch() {
	defer close(p.done)
	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(p.epoll, events, watchEvery)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		p.mu.Lock()
		for _, e := range events[:max(0, n)] {
			if at, ok := p.mu.waiters[int(e.Fd)]; ok {
				at.wakeLocked(e.Events)
			}
		}
		closed := p.mu.closed
		p.mu.Unlock()
		if closed {
			return
		}
	}
}

// wakeLocked passes an event on.
func (at *waiter) wakeLocked(events uint32) {
	if at.gone != nil && events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		at.gone()
	}
	select {
	case at.woken <- struct{}{}:
	default:
	}
}

// Close ends the poller; no connection may wait any more.
func (p *Poller) Close() {
	p.mu.Lock()
	p.mu.closed = true
	p.mu.Unlock()
	<-p.done
	_ = unix.Close(p.epoll)
}
