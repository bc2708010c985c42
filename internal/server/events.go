package server

import (
	"context"
	"strconv"
	"strings"
	"time"
)

const (
	// eventsAtOnce is how many events one answer has unless MAX says otherwise,
	// and eventsMost is the most that MAX may say.
	eventsAtOnce = 1 << 10
	eventsMost   = 1 << 16

	// maxEventsWait bounds WAIT, as every answer comes in that time.
	maxEventsWait = 5 * time.Second
)

// eventsRequest is what EVENTS asks for.
type eventsRequest struct {
	since uint64
	most  int
	wait  time.Duration
}

// parseEvents reads EVENTS's arguments. bad is the text of an error reply.
func parseEvents(args [][]byte) (q eventsRequest, bad string) {
	q.most = eventsAtOnce
	var err error
	if q.since, err = strconv.ParseUint(string(args[0]), 10, 64); err != nil {
		return q, errNumber
	}
	rest := args[1:]
	if len(rest)%2 != 0 {
		return q, errSyntax
	}
	for i := 0; i < len(rest); i += 2 {
		n, err := strconv.ParseInt(string(rest[i+1]), 10, 64)
		if err != nil || n < 0 {
			return q, errNumber
		}
		switch strings.ToUpper(string(rest[i])) {
		case "MAX":
			q.most = int(min(max(n, 1), eventsMost))
		case "WAIT":
			q.wait = min(maxEventsWait, time.Duration(min(n, maxEventsWait.Milliseconds()))*time.Millisecond)
		default:
			return q, errSyntax
		}
	}
	return q, ""
}

// cmdCascadeEvents tells what has become readable here, and what no more is.
func cmdCascadeEvents(c *conn, args [][]byte) {
	q, bad := parseEvents(args[1:])
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	next, lost, events := c.srv.opt.Store.Events(q.since, q.most)
	if len(events) == 0 && lost == 0 && q.wait > 0 {
		end, halted := time.Now().Add(q.wait), c.srv.poller.QuiesceBegins()
		if c.awaitEvent(next, q.wait, halted) {
			next, lost, events = c.srv.opt.Store.Events(next, q.most)
		} else if left := time.Until(end); isClosed(halted) && left > 0 && !c.quit {
			c.putBack("CASCADE.EVENTS", strconv.FormatUint(next, 10), "MAX", strconv.Itoa(q.most), "WAIT", millis(left))
			return
		}
	}
	c.wr.Array(3)
	c.wr.Int(int64(next))
	c.wr.Int(int64(lost))
	c.wr.Array(len(events))
	for i := range events {
		e := &events[i]
		c.wr.Array(4)
		c.wr.BulkString(e.Kind.String())
		c.wr.BulkString(e.Namespace)
		c.wr.BulkString(e.Key)
		c.wr.Int(e.Size)
	}
}

// awaitEvent waits for an event number next, and is false when none came in
// time, the client has left, connections are to rest, or the server ends. Answers that were collected
// before go out first.
func (c *conn) awaitEvent(next uint64, patience time.Duration, halted <-chan struct{}) bool {
	if c.flush() != nil {
		c.quit = true
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	defer c.sock.OnHangUp(cancel)()
	go func() {
		select {
		case <-halted:
			cancel()
		case <-ctx.Done():
		}
	}()
	return c.srv.opt.Store.AwaitEvent(ctx, next)
}
