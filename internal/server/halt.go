package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"cascadekv/internal/netio"
)

// putBack makes a command the next one to be read.
func (c *conn) putBack(words ...string) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	c.sock.SetPushback(append([]byte(b.String()), c.unread()...))
	c.rd.Reset(c.sock)
}

// unread is a copy of what was received and not served.
func (c *conn) unread() []byte {
	return append(append([]byte(nil), c.rd.Unread()...), c.sock.Pushback()...)
}

// millis is a wait in milliseconds, 1 at least.
func millis(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
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

	// haltHTTP is how long requests of HTTP are waited for; then they are cut,
	// as profiles are that take long.
	haltHTTP = 500 * time.Millisecond
)

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
	q := s.poller.Quiesce()
	defer q.End()
	defer s.jobs.Resume()
	for {
		if s.isEnding() {
			return errEnds
		}
		for _, g := range s.allListeners() {
			g.Interrupt(began) // again and again: one may just come out of an earlier halt
		}
		busy := s.busy(q, asked, time.Since(began) < haltHTTP)
		if len(busy) == 0 && s.jobs.Rest() {
			return then(began)
		}
		select {
		case <-ctx.Done():
			return s.errBusy(busy)
		case <-time.After(haltStep):
			q.Wake()
		}
	}
}

// allListeners are those of clients and that of HTTP.
func (s *Server) allListeners() []*netio.Listener {
	if s.admin == nil {
		return s.listeners
	}
	return append(s.listeners[:len(s.listeners):len(s.listeners)], s.admin)
}

// busy lists connections that do not rest. While a listener does not, one may come:
// the list has nil for it, and for requests of HTTP unless http is false.
func (s *Server) busy(q *netio.Quiesce, asked *conn, http bool) []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	var busy []*conn
	for c := range s.conns {
		if c != asked && !q.Rests(c.sock) {
			busy = append(busy, c)
		}
	}
	if q.Listeners() < len(s.allListeners()) || http && s.http.Busy() {
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
		who = append(who, fmt.Sprintf("%d (%s)", c.id, c.sock.Peer()))
	}
	if len(busy) > namedBusy {
		who = append(who, "…")
	}
	return fmt.Errorf("%w: %d of them: %s; end those clients, or wait for them for longer", ErrBusy, len(busy), strings.Join(who, ", "))
}
