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
	"cascadekv/internal/fault"
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
// reports nothing of it. Its goroutine may delegate: then the poller answers, and
// wakes it for what takes a wait. It is safe for concurrent use.
type Poller struct {
	epoll   int
	credit  spinCredit              // of watches for what is delegated; of the poller's goroutine
	quiesce atomic.Pointer[Quiesce] // nil unless connections are to rest
	spin    spinner
	buffers sendBuffers
	stalled *admission.Allowance
	done    chan struct{}
	room    [answerRoom]byte // of the poller's goroutine, as is vain
	vain    int              // short sleeps since something came last

	mu struct {
		sync.Mutex
		waiters map[int]*waiter // by descriptor; present once it was armed
		last    int32           // number of the last waiter that was made
		begins  chan struct{}   // closed when the next quiesce begins
		closed  bool
	}
}

// waiter is where one connection waits. The poller's mu guards its fields, but for delegated.
type waiter struct {
	number int32         // comes with its events, which may be of an earlier connection of this descriptor
	woken  chan struct{} // capacity 1
	known  bool          // the kernel has it
	level  bool          // and reports its events for as long as they are true, for a goroutine that delegates
	gone   func()        // called when the client hangs up; nil: nothing is

	delegated delegation
}

// NewPoller starts a poller, for the caller to close.
func NewPoller(o Config) (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("server: %w", os.NewSyscallError("epoll_create1", err))
	}
	p := &Poller{epoll: fd, credit: fullCredit, stalled: o.Stalled, done: make(chan struct{})}
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
	at := p.waiterLocked(c)
	if err := p.controlLocked(at, c.fd, events|unix.EPOLLONESHOT); err != nil {
		return nil, err
	}
	at.gone = gone
	return at.woken, nil
}

func (p *Poller) waiterLocked(c *Conn) *waiter {
	at := p.mu.waiters[c.fd]
	if at == nil {
		p.mu.last++
		at = &waiter{number: p.mu.last, woken: make(chan struct{}, 1)}
		p.mu.waiters[c.fd] = at
	}
	return at
}

// controlLocked has the kernel report some events of a descriptor, and no others.
func (p *Poller) controlLocked(at *waiter, fd int, events uint32) error {
	op := unix.EPOLL_CTL_MOD
	if !at.known {
		op = unix.EPOLL_CTL_ADD
	}
	ev := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: at.number}
	if err := unix.EpollCtl(p.epoll, op, fd, &ev); err != nil {
		return fmt.Errorf("server: wait for a client: %w", os.NewSyscallError("epoll_ctl", err))
	}
	at.known, at.level = true, events&unix.EPOLLONESHOT == 0
	return nil
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

// mostEvents is how many events are taken with one look: the first is answered when all of
// them have been looked at.
const mostEvents = 32

// watchEvery bounds how long Close takes, in milliseconds.
const watchEvery = 500

// watch wakes waiting connections, and answers for those that delegate.
func (p *Poller) watch() {
	defer close(p.done)
	defer fault.Guard()() // as the goroutines have it that it answers for
	events, answered := make([]unix.EpollEvent, mostEvents), make([]unix.EpollEvent, 0, mostEvents)
	for {
		n, err := p.events(events, len(answered) > 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		answered = answered[:0]
		p.mu.Lock()
		for _, e := range events[:max(0, n)] {
			if p.eventLocked(e) {
				answered = append(answered, e)
			}
		}
		// Not one by one: a client that has several connections is woken once.
		for _, e := range answered {
			if at := p.waiterOfLocked(e); at != nil {
				p.sendLocked(at, e)
			}
		}
		closed := p.mu.closed
		p.mu.Unlock()
		if closed {
			return
		}
	}
}

// eventLocked passes an event on, or answers what came; the mutex is free meanwhile.
func (p *Poller) eventLocked(e unix.EpollEvent) (answered bool) {
	at := p.waiterOfLocked(e)
	if at == nil {
		return false
	}
	if at.level && p.answerLocked(at, e) {
		return true
	}
	at.wakeLocked(e.Events)
	return false
}

// waiterOfLocked is the waiter of an event; nil if its connection was closed meanwhile.
func (p *Poller) waiterOfLocked(e unix.EpollEvent) *waiter {
	if at := p.mu.waiters[int(e.Fd)]; at != nil && at.number == e.Pad {
		return at
	}
	return nil
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
