package server

import (
	"context"
	"strconv"
	"time"

	"cascadekv/internal/args"
)

// cmdCascadeEvents reports what has become readable here, and what no longer is.
func cmdCascadeEvents(c *conn, words [][]byte) {
	q, bad := args.ParseEvents(words[1:])
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	next, lost, events := c.srv.opt.Store.Events().Since(q.Since, q.Most)
	if len(events) == 0 && lost == 0 && q.Wait > 0 {
		end, halted := time.Now().Add(q.Wait), c.srv.poller.QuiesceBegins()
		if c.awaitEvent(next, q.Wait, halted) {
			next, lost, events = c.srv.opt.Store.Events().Since(next, q.Most)
		} else if left := time.Until(end); isClosed(halted) && left > 0 && !c.quit {
			c.putBack("CASCADE.EVENTS", strconv.FormatUint(next, 10), "MAX", strconv.Itoa(q.Most), "WAIT", millis(left))
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
	return c.srv.opt.Store.Events().Wait(ctx, next)
}
