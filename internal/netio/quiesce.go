package netio

import (
	"errors"
	"sync"
)

// ErrQuiesce ends the wait for a command when connections are to rest.
var ErrQuiesce = errors.New("server: connections rest")

// Quiesce is a time in which connections and listeners rest: connections between
// two commands, with all replies sent. It is safe for concurrent use.
type Quiesce struct {
	poller *Poller
	over   chan struct{} // closed when everybody goes on

	mu struct {
		sync.Mutex
		conns     map[*Conn]struct{} // that rest
		listeners int                // that rest
	}
}

// Quiesce has connections rest as they come to the end of their command (see
// Quiescing) and listeners when Interrupt is called, until End.
func (p *Poller) Quiesce() *Quiesce {
	q := &Quiesce{poller: p, over: make(chan struct{})}
	q.mu.conns = map[*Conn]struct{}{}
	p.quiesce.Store(q)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.mu.begins)
	return q
}

// End lets everybody go on.
func (q *Quiesce) End() {
	p := q.poller
	p.mu.Lock()
	p.mu.begins = make(chan struct{})
	p.mu.Unlock()
	p.quiesce.Store(nil)
	close(q.over)
}

// Rest waits, for a connection, until everybody goes on.
func (q *Quiesce) Rest(c *Conn) {
	q.mu.Lock()
	q.mu.conns[c] = struct{}{}
	q.mu.Unlock()
	<-q.over
}

// Rests reports whether a connection rests.
func (q *Quiesce) Rests(c *Conn) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, rests := q.mu.conns[c]
	return rests
}

// Listeners returns how many listeners rest.
func (q *Quiesce) Listeners() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.listeners
}

// Wake has all waiting connections look whether they are to rest.
func (q *Quiesce) Wake() {
	q.poller.mu.Lock()
	defer q.poller.mu.Unlock()
	for _, at := range q.poller.mu.waiters {
		at.wakeLocked(0)
	}
}

// Quiescing returns the quiesce in which connections are to rest now, nil for none.
func (p *Poller) Quiescing() *Quiesce { return p.quiesce.Load() }

// QuiesceBegins returns a channel that is closed when the next quiesce begins, or
// has begun.
func (p *Poller) QuiesceBegins() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.begins
}
