package server

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

// errParkingClosed is what parked connections get when the server ends.
var errParkingClosed = fmt.Errorf("server: %w", net.ErrClosed)

// parking is where connections wait between commands, without a thread each.
// A parked connection is armed for one event; while it is being served the
// kernel has nothing to tell about it.
type parking struct {
	epoll int

	halt atomic.Pointer[halt] // nil unless connections are to rest

	flight  *flight              // of the server
	stalled *admission.Allowance // likewise

	mu     sync.Mutex
	parked map[int]*place // by descriptor; present once it was armed
	halts  chan struct{}  // closed when the next halt begins
	ended  bool
	done   chan struct{}
}

// place is where one connection waits.
type place struct {
	woken chan struct{} // capacity 1
	gone  func()        // to be called when the client hangs up; nil: nothing
}

func newParking() (*parking, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("server: %w", os.NewSyscallError("epoll_create1", err))
	}
	p := &parking{epoll: fd, flight: &flight{}, stalled: &admission.Allowance{}, parked: map[int]*place{}, halts: make(chan struct{}), done: make(chan struct{})}
	go p.watch()
	return p, nil
}

// park waits until the wire has something to read, or is hung up. It gives up
// after patience, unless that is 0, with os.ErrDeadlineExceeded.
func (p *parking) park(w *wire, patience time.Duration) error {
	return p.parkFor(w, unix.EPOLLIN|unix.EPOLLRDHUP, patience)
}

// parkFor is park for the first of some events.
func (p *parking) parkFor(w *wire, events uint32, patience time.Duration) error {
	woken, err := p.arm(w, events, nil)
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

// awaitRoom waits until more can be sent on the wire, or it is hung up. It gives
// up after patience, with errStalled.
func (p *parking) awaitRoom(w *wire, patience time.Duration) error {
	if patience <= 0 {
		return errStalled
	}
	woken, err := p.arm(w, unix.EPOLLOUT, nil)
	if err != nil {
		return err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-woken:
		return nil
	case <-timer.C:
		return errStalled
	}
}

// arm asks to be told once of the first of some events of a wire, and to have
// gone called if that is the client's hanging up. What comes may also be left
// over from an earlier call: look.
func (p *parking) arm(w *wire, events uint32, gone func()) (<-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil, errParkingClosed
	}
	at, known := p.parked[w.fd]
	if !known {
		at = &place{woken: make(chan struct{}, 1)}
		p.parked[w.fd] = at
	}
	op := unix.EPOLL_CTL_MOD
	if !known {
		op = unix.EPOLL_CTL_ADD
	}
	ev := unix.EpollEvent{Events: events | unix.EPOLLONESHOT, Fd: int32(w.fd)}
	if err := unix.EpollCtl(p.epoll, op, w.fd, &ev); err != nil {
		return nil, fmt.Errorf("server: park a connection: %w", os.NewSyscallError("epoll_ctl", err))
	}
	at.gone = gone
	return at.woken, nil
}

// onHangUp has gone called, from another goroutine, should the client hang up
// before the function that is returned is.
func (p *parking) onHangUp(w *wire, gone func()) (end func()) {
	if _, err := p.arm(w, unix.EPOLLRDHUP, gone); err != nil {
		gone()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if at := p.parked[w.fd]; at != nil {
			at.gone = nil
		}
	}
}

// forget drops a wire that is about to be closed.
func (p *parking) forget(w *wire) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.parked[w.fd]; known {
		delete(p.parked, w.fd)
		_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, w.fd, nil) // close does it too
	}
}

// watchEvery bounds how long the end of the server goes unnoticed, in
// milliseconds.
const watchEvery = 500

// watch wakes parked connections.
func (p *parking) watch() {
	defer close(p.done)
	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(p.epoll, events, watchEvery)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		p.mu.Lock()
		for _, e := range events[:max(0, n)] {
			if at, ok := p.parked[int(e.Fd)]; ok {
				at.wake(e.Events)
			}
		}
		ended := p.ended
		p.mu.Unlock()
		if ended {
			return
		}
	}
}

// wake tells of an event. The caller holds the mutex.
func (at *place) wake(events uint32) {
	if at.gone != nil && events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		at.gone()
	}
	select {
	case at.woken <- struct{}{}:
	default:
	}
}

// close ends the watch; no connection may be parked any more.
func (p *parking) close() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	<-p.done
	_ = unix.Close(p.epoll)
}
