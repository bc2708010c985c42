package server

import (
	"time"

	"cascadekv/internal/admission"
	"cascadekv/internal/resp"
)

const (
	// A client that has not authenticated may send earlyCommands, each of
	// earlyArgs arguments and earlyBytes at most, and has authWithin to end that.
	earlyCommands = 64
	earlyArgs     = 10
	earlyBytes    = 16 << 10
	authWithin    = 10 * time.Second

	// reservedShare is the part of max_connections, and mostReserved the most of
	// it, that only the rank's own user and root get, on the unix socket.
	reservedShare = 8
	mostReserved  = 64

	// heldCommands bounds the memory of commands that arrive, all connections
	// together; who is not the rank's own user on the unix socket gets half of it.
	heldCommands = 256 << 20

	// maxName bounds the name that a client gives its connection, in bytes.
	maxName = 256
)

// reserved is how many of most connections only the owner gets.
func reserved(most int) int { return min(most/reservedShare, mostReserved) }

// setOwn gives the connection the rights and limits of the rank's own user on the
// unix socket, or those of everybody else.
func (c *conn) setOwn(own bool) {
	c.own = own
	c.sock.SetOwn(own)
	c.rd.SetRoom(admission.Share{Of: c.srv.arriving, Own: own})
}

// bind applies the limits of clients that have not authenticated as long as the
// connection is one of them.
func (c *conn) bind() {
	if c.bound == !c.authed {
		return
	}
	c.bound = !c.authed
	if !c.bound {
		c.rd.Limit(resp.Limits{})
		c.sock.Until = time.Time{}
		c.srv.strangers.Remove(c)
		return
	}
	c.rd.Limit(resp.Limits{Args: earlyArgs, Bytes: earlyBytes})
	c.sock.Until, c.early = time.Now().Add(authWithin), 0
	if c.own {
		return
	}
	for _, o := range c.srv.strangers.Add(c, c.source, c.srv.limits.Load().MaxConnections) {
		c.srv.counters.refused.Add(1)
		o.cut()
	}
}

// cut ends the connection whatever it does. It may be called from any goroutine.
func (c *conn) cut() {
	c.ending.Store(true)
	c.sock.Shutdown(true)
}

// tooEarly counts a command of a client that has not authenticated, and ends the
// connection after too many.
func (c *conn) tooEarly() bool {
	if !c.bound {
		return false
	}
	if c.early++; c.early <= earlyCommands {
		return false
	}
	c.wr.Error("NOAUTH too many commands before authentication")
	c.quit = true
	return true
}
