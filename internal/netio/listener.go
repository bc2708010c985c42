package netio

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"cascadekv/internal/rawfd"
)

// Listener is a listener that can rest: what comes meanwhile waits in its backlog.
type Listener struct {
	net.Listener
	poller *Poller
}

// Listen returns a listener that rests when the poller's connections do.
func (p *Poller) Listen(l net.Listener) *Listener { return &Listener{l, p} }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return nc, err
		}
		if q := l.poller.Quiescing(); q != nil {
			q.mu.Lock()
			q.mu.listeners++
			q.mu.Unlock()
			<-q.over
		}
		l.Interrupt(time.Time{})
	}
}

// Interrupt ends, at a time, the wait for a connection, for a listener that is to
// rest; never for the zero time.
func (l *Listener) Interrupt(at time.Time) {
	if d, ok := l.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		_ = d.SetDeadline(at) // fails when it is closed: Accept reports it
	}
}

// CheckFile looks whether the file of a unix socket is there, and listens again
// when it is not.
func (l *Listener) CheckFile() {
	if u, ok := l.Listener.(*UnixListener); ok {
		u.check()
	}
}

// Descriptor returns the listener's own descriptor, not a copy.
func (l *Listener) Descriptor() (fd int, err error) {
	sc, ok := l.Listener.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("server: %T has no descriptor", l.Listener)
	}
	fd, err = rawfd.Get(sc, func(fd int) (int, error) { return fd, nil })
	if err != nil {
		return -1, fmt.Errorf("server: descriptor of a listener: %w", err)
	}
	return fd, nil
}
