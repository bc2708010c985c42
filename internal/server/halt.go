package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// errHalted ends the wait for a command when connections are to rest.
var errHalted = errors.New("server: connections rest")

// halt is a time in which connections and listeners rest: connections between
// two commands, with all replies sent.
type halt struct {
	over chan struct{} // closed when everybody goes on

	mu        sync.Mutex
	conns     map[*conn]struct{} // that rest
	listeners int                // that rest
}

// begin has connections rest as they come to the end of their command.
func (p *parking) begin() *halt {
	h := &halt{over: make(chan struct{}), conns: map[*conn]struct{}{}}
	p.halt.Store(h)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.halts)
	return h
}

// end lets everybody go on.
func (p *parking) end(h *halt) {
	p.mu.Lock()
	p.halts = make(chan struct{})
	p.mu.Unlock()
	p.halt.Store(nil)
	close(h.over)
}

// halting is closed when the next halt begins, or has begun.
func (p *parking) halting() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.halts
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// wakeAll has all parked connections look around.
func (p *parking) wakeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range p.parked {
		at.wake(0)
	}
}

// rest waits for the end of the halt; false when the connection can not go on.
func (c *conn) rest(h *halt) bool {
	if c.flush() != nil {
		return false
	}
	h.mu.Lock()
	h.conns[c] = struct{}{}
	h.mu.Unlock()
	<-h.over
	return true
}

// putBack makes a command the next one to be read.
func (c *conn) putBack(words ...string) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	c.wire.first = append([]byte(b.String()), c.unread()...)
	c.rd.Reset(c.wire)
}

// unread is a copy of what was received and not served.
func (c *conn) unread() []byte {
	return append(append([]byte(nil), c.rd.Unread()...), c.wire.first...)
}

// millis is a wait in milliseconds, 1 at least.
func millis(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

// gate is a listener that can rest: what comes meanwhile waits in its backlog.
type gate struct {
	net.Listener
	lot *parking
}

// Accept implements net.Listener.
func (g gate) Accept() (net.Conn, error) {
	for {
		nc, err := g.Listener.Accept()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return nc, err
		}
		if h := g.lot.halt.Load(); h != nil {
			h.mu.Lock()
			h.listeners++
			h.mu.Unlock()
			<-h.over
		}
		g.setDeadline(time.Time{})
	}
}

func (g gate) setDeadline(t time.Time) {
	if l, ok := g.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		_ = l.SetDeadline(t) // fails when it is closed: Accept says so
	}
}

const (
	// haltStep is how often a halt looks who does not rest yet.
	haltStep = time.Millisecond

	// haltWindow is how long connections rest at most while others do not: far
	// less than the 5 s in which every answer comes. haltPause is how long they
	// are served then, before the next attempt.
	haltWindow = 1500 * time.Millisecond
	haltPause  = 500 * time.Millisecond

	// haltVisitors is how long requests of HTTP are waited for; then they are
	// cut, as profiles are that take long.
	haltVisitors = 500 * time.Millisecond
)

// visitors are the connections of HTTP that are in a request, or about to be.
type visitors struct {
	mu  sync.Mutex
	are map[net.Conn]struct{}
}

// see is for http.Server.ConnState. A new connection is seen before the listener
// is asked for another one.
func (v *visitors) see(nc net.Conn, st http.ConnState) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if st == http.StateNew || st == http.StateActive {
		setIn(&v.are, nc, struct{}{})
	} else {
		delete(v.are, nc)
	}
}

func (v *visitors) any() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.are) > 0
}

// ErrBusy means that some connections did not come to the end of their command.
var ErrBusy = errors.New("server: connections are in the middle of a command")

// errEnds means that the server was told to end.
var errEnds = errors.New("server: it ends")

// still has everything rest, calls then while it does, and lets it go on: then
// tells how that went. It tries until ctx ends. asked is the connection that calls.
func (s *Server) still(ctx context.Context, asked *conn, then func(began time.Time) error) error {
	for {
		err := s.stillOnce(ctx, asked, then)
		if !errors.Is(err, ErrBusy) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(haltPause):
		case <-ctx.Done():
			return err
		}
	}
}

func (s *Server) stillOnce(ctx context.Context, asked *conn, then func(began time.Time) error) error {
	ctx, cancel := context.WithTimeout(ctx, haltWindow)
	defer cancel()
	began := time.Now()
	h := s.lot.begin()
	defer s.lot.end(h)
	defer s.jobs.goOn()
	for {
		if s.isEnding() {
			return errEnds
		}
		for _, g := range s.gates() {
			g.setDeadline(began) // again and again: one may just come out of an earlier halt
		}
		busy := s.busy(h, asked, time.Since(began) < haltVisitors)
		if len(busy) == 0 && s.jobs.rest() {
			return then(began)
		}
		select {
		case <-ctx.Done():
			return s.errBusy(busy)
		case <-time.After(haltStep):
			s.lot.wakeAll()
		}
	}
}

func (s *Server) gates() []gate {
	gates := s.listeners
	if s.admin != nil {
		gates = append(gates[:len(gates):len(gates)], *s.admin)
	}
	return gates
}

// busy lists connections that do not rest. While a listener does not, one may
// come: the list has nil for it, and if visitors count for requests of HTTP.
func (s *Server) busy(h *halt, asked *conn, visitors bool) []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	var busy []*conn
	for c := range s.conns {
		if _, rests := h.conns[c]; !rests && c != asked {
			busy = append(busy, c)
		}
	}
	if h.listeners < len(s.gates()) || visitors && s.visitors.any() {
		busy = append(busy, nil)
	}
	return busy
}

// namedBusy is how many connections ErrBusy names.
const namedBusy = 5

// errBusy says who did not rest.
func (s *Server) errBusy(busy []*conn) error {
	if len(busy) == 0 {
		return fmt.Errorf("%w: jobs of CASCADE.STORE and CASCADE.LOAD did not pause", ErrBusy)
	}
	var who []string
	for _, c := range busy[:min(len(busy), namedBusy)] {
		if c == nil {
			who = append(who, "one that was just accepted")
			continue
		}
		who = append(who, fmt.Sprintf("%d (%s)", c.id, c.wire.peer()))
	}
	if len(busy) > namedBusy {
		who = append(who, "…")
	}
	return fmt.Errorf("%w: %d of them: %s; end those clients, or wait for them for longer", ErrBusy, len(busy), strings.Join(who, ", "))
}

// peer tells who is at the other end, for people. It may be called from any
// goroutine.
func (w *wire) peer() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return "it ends"
	}
	if w.local {
		if cred, err := unix.GetsockoptUcred(w.fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			return fmt.Sprintf("process %d of uid %d", cred.Pid, cred.Uid)
		}
		return "unix socket"
	}
	ip, port := peerAddress(w.fd)
	if ip == nil {
		return "tcp"
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(port))
}

// ip is the address at the other end, nil for a unix socket and for a client that
// is gone. It may be called from any goroutine.
func (w *wire) ip() net.IP {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.local {
		return nil
	}
	ip, _ := peerAddress(w.fd)
	return ip
}

func peerAddress(fd int) (net.IP, int) {
	switch a, _ := unix.Getpeername(fd); a := a.(type) {
	case *unix.SockaddrInet4:
		return net.IP(a.Addr[:]), a.Port
	case *unix.SockaddrInet6:
		return net.IP(a.Addr[:]), a.Port
	}
	return nil, 0
}

// rest has jobs begin no other turn, and tells whether none is in one.
func (p *pool) rest() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.halted = true
	return p.workers == 0
}

// goOn undoes rest.
func (p *pool) goOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.halted {
		return
	}
	p.halted = false
	for range p.ring {
		if p.workers < p.most {
			p.workers++
			go p.work()
		}
	}
}
