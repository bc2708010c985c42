package server

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/internal/resp"
)

const (
	// A client that has not authenticated may send earlyCommands, each of
	// earlyArgs arguments and earlyBytes at most, and has authWithin to end that.
	earlyCommands = 64
	earlyArgs     = 10
	earlyBytes    = 16 << 10
	authWithin    = 10 * time.Second

	// strangerShare is the part of max_connections that clients which have not
	// authenticated may take together, and sourceShare what those of one address
	// or user id may; leastStrangers and leastOfSource are the least of these.
	strangerShare  = 4
	sourceShare    = 16
	leastStrangers = 16
	leastOfSource  = 8

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

// allowance bounds what clients take of something together. Those who are not
// the rank's own user may take others of it. It may be used by any goroutine.
type allowance struct {
	all, others   int64
	used, foreign atomic.Int64 // foreign is the part of used that others took
}

// take counts n in for a client, or is false when there is no room for it.
func (a *allowance) take(n int64, own bool) bool {
	if !own && !addWithin(&a.foreign, n, a.others) {
		return false
	}
	if addWithin(&a.used, n, a.all) {
		return true
	}
	if !own {
		a.foreign.Add(-n)
	}
	return false
}

// give undoes take.
func (a *allowance) give(n int64, own bool) {
	a.used.Add(-n)
	if !own {
		a.foreign.Add(-n)
	}
}

// addWithin adds n to a sum that stays within limit, or is false.
func addWithin(sum *atomic.Int64, n, limit int64) bool {
	for {
		used := sum.Load()
		if n > limit-used {
			return false
		}
		if sum.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// commandRoom is a resp.Room of one connection.
type commandRoom struct {
	of  *allowance
	own bool
}

func (r commandRoom) Take(n int64) bool { return r.of.take(n, r.own) }
func (r commandRoom) Give(n int64)      { r.of.give(n, r.own) }

// strangers are the connections that have not authenticated, oldest first. Its
// methods are safe for concurrent use.
type strangers struct {
	mu   sync.Mutex
	all  list.List // of *conn
	at   map[*conn]*list.Element
	from map[string]int // how many, by source

	ending map[*conn]struct{} // removed by add, and not gone yet
}

// add counts a connection in. While there are too many, of its source or
// together, it removes the oldest and returns them, for the caller to cut.
func (s *strangers) add(c *conn, most int) (cut []*conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at, s.from, s.ending = map[*conn]*list.Element{}, map[string]int{}, map[*conn]struct{}{}
	}
	if s.at[c] != nil {
		return nil
	}
	if most > 0 {
		each, together := max(most/sourceShare, leastOfSource), max(most/strangerShare, leastStrangers)
		for s.from[c.source] >= each {
			cut = append(cut, s.oldestLocked(func(o *conn) bool { return o.source == c.source }))
		}
		for s.all.Len() >= together {
			cut = append(cut, s.oldestLocked(func(*conn) bool { return true }))
		}
	}
	s.at[c] = s.all.PushBack(c)
	s.from[c.source]++
	return cut
}

// oldestLocked removes the oldest connection that fits. There is one.
func (s *strangers) oldestLocked(fits func(*conn) bool) *conn {
	for e := s.all.Front(); ; e = e.Next() {
		if c := e.Value.(*conn); fits(c) {
			s.removeLocked(c)
			s.ending[c] = struct{}{}
			return c
		}
	}
}

// remove counts a connection out, if it is in.
func (s *strangers) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(c)
	delete(s.ending, c)
}

// cutOff is how many connections end because add removed them, most at most.
func (s *strangers) cutOff(most int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(len(s.ending), most)
}

func (s *strangers) removeLocked(c *conn) {
	e := s.at[c]
	if e == nil {
		return
	}
	delete(s.at, c)
	s.all.Remove(e)
	if s.from[c.source]--; s.from[c.source] == 0 {
		delete(s.from, c.source)
	}
}

func (s *strangers) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.Len()
}

// setOwn gives the connection the rights and limits of the rank's own user on the
// unix socket, or those of everybody else.
func (c *conn) setOwn(own bool) {
	c.own, c.wire.own = own, own
	c.rd.SetRoom(commandRoom{&c.srv.arriving, own})
	if !own {
		c.wire.dropDescriptors()
		c.wire.shared = nil // the kernel drops what comes
	}
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
		c.wire.until = time.Time{}
		c.srv.strangers.remove(c)
		return
	}
	c.rd.Limit(resp.Limits{Args: earlyArgs, Bytes: earlyBytes})
	c.wire.until, c.early = time.Now().Add(authWithin), 0
	if c.own {
		return
	}
	for _, o := range c.srv.strangers.add(c, c.srv.limits.Load().MaxConnections) {
		c.srv.metrics.refused.Add(1)
		o.cut()
	}
}

// cut ends the connection whatever it does. It may be called from any goroutine.
func (c *conn) cut() {
	c.ending.Store(true)
	c.wire.interrupt(true)
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
