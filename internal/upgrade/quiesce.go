package upgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cascadekv/internal/netio"
)

const (
	// step is how often it is looked who does not rest yet.
	step = time.Millisecond

	// window is how long connections rest at most while others do not: far less
	// than the 5 s in which every answer comes. pause is how long they are served
	// then, before the next attempt.
	window = 1500 * time.Millisecond
	pause  = 500 * time.Millisecond

	// httpPatience is how long requests of HTTP are waited for; then they are cut,
	// as profiles are that take long.
	httpPatience = 500 * time.Millisecond

	// namedBusy is how many connections ErrBusy names.
	namedBusy = 5
)

// ErrBusy means that some connections did not come to the end of their command.
var ErrBusy = errors.New("server: connections are in the middle of a command")

// errEnding means that the server is shut down.
var errEnding = errors.New("server: it ends")

// Conn is a connection that has to rest.
type Conn struct {
	ID   uint64
	Sock *netio.Conn
}

// Front is what has to come to rest. The functions may be called from any
// goroutine.
type Front struct {
	Poller    *netio.Poller
	Listeners []*netio.Listener
	Conns     func() []Conn // all of them, but for the one that asks
	Ending    func() bool   // the server is shut down
	HTTPBusy  func() bool   // a client of HTTP is in a request

	RestJobs   func() bool // jobs begin no other turn; true when none is in one
	ResumeJobs func()
}

// Quiesce brings everything to rest, calls then while it does, lets it go on, and
// returns what then did. It tries until ctx ends. Errors: ErrBusy, that of then.
func (f *Front) Quiesce(ctx context.Context, then func(began time.Time) error) error {
	for {
		err := f.once(ctx, then)
		if !errors.Is(err, ErrBusy) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

func (f *Front) once(ctx context.Context, then func(began time.Time) error) error {
	ctx, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	began := time.Now()
	q := f.Poller.Quiesce()
	defer q.End()
	defer f.ResumeJobs()
	for {
		if f.Ending() {
			return errEnding
		}
		for _, l := range f.Listeners {
			l.Interrupt(began) // again and again: one may just come out of an earlier quiesce
		}
		busy := f.busy(q, time.Since(began) < httpPatience)
		if len(busy) == 0 && f.RestJobs() {
			return then(began)
		}
		select {
		case <-ctx.Done():
			return errBusy(busy)
		case <-time.After(step):
			q.Wake()
		}
	}
}

// busy lists connections that do not rest. While a listener does not, one may come:
// the list has an empty one for it, and for requests of HTTP unless http is false.
// Listeners come first: when they rest, no connection is added any more.
func (f *Front) busy(q *netio.Quiesce, http bool) []Conn {
	more := q.Listeners() < len(f.Listeners) || http && f.HTTPBusy()
	busy := slices.DeleteFunc(f.Conns(), func(c Conn) bool { return q.Rests(c.Sock) })
	if more {
		busy = append(busy, Conn{})
	}
	return busy
}

// errBusy names who did not rest.
func errBusy(busy []Conn) error {
	if len(busy) == 0 {
		return fmt.Errorf("%w: jobs of CASCADE.STORE and CASCADE.LOAD did not pause", ErrBusy)
	}
	var who []string
	for _, c := range busy[:min(len(busy), namedBusy)] {
		if c.Sock == nil {
			who = append(who, "one that was just accepted")
			continue
		}
		who = append(who, fmt.Sprintf("%d (%s)", c.ID, c.Sock.Peer()))
	}
	if len(busy) > namedBusy {
		who = append(who, "…")
	}
	return fmt.Errorf("%w: %d of them: %s; end those clients, or wait for them for longer", ErrBusy, len(busy), strings.Join(who, ", "))
}
