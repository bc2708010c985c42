package server

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"cascadekv/cascade"
	"cascadekv/cascade/events"
	"cascadekv/cascade/traffic"
	"cascadekv/internal/args"
	"cascadekv/internal/block"
)

// cmdCascadeEvents reports what has become readable here, and what no longer is.
func cmdCascadeEvents(c *conn, words [][]byte) {
	follow(c, words, c.srv.opt.Store.Events(), func(e *events.Event) {
		c.wr.Array(4)
		c.wr.BulkString(e.Kind.String())
		c.wr.BulkString(e.Namespace)
		c.wr.BulkString(e.Key)
		c.wr.Int(e.Size)
	})
}

// cmdCascadeTraffic reports what clients ask for and put.
func cmdCascadeTraffic(c *conn, words [][]byte) {
	follow(c, words, cascade.Traffic(c.srv.opt.Store), func(x *traffic.Command) { c.wr.Bulk(traffic.Append(nil, x)) })
}

// note adds a command to the log of traffic, if somebody asks for that.
func note(c *conn, name string, words [][]byte) {
	if !cascade.Traffic(c.srv.opt.Store).On() {
		return
	}
	now := time.Now()
	if x, first, ok := args.Traffic(name, c.ns, words, now); ok {
		x.At, x.Sender = now.UnixMilli(), senderOf(c)
		cascade.NoteTraffic(c.srv.opt.Store, x, first)
	}
}

// senderOf is who sends the commands of a connection: a process, or else a user or an address.
func senderOf(c *conn) traffic.Sender {
	return traffic.Sender{Engine: cmp.Or(uint64(c.sock.Process()), block.Fingerprint("", c.source)), Conn: c.id}
}

// follow answers what a log has from a number on, event by event.
func follow[E any](c *conn, words [][]byte, log *events.Log[E], reply func(*E)) {
	q, bad := args.ParseEvents(words[1:])
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	next, lost, some := log.Since(q.Since, q.Most)
	if len(some) == 0 && lost == 0 && q.Wait > 0 {
		end, halted := time.Now().Add(q.Wait), c.srv.poller.QuiesceBegins()
		if await(c, log.Wait, next, q.Wait, halted) {
			next, lost, some = log.Since(next, q.Most)
		} else if left := time.Until(end); isClosed(halted) && left > 0 && !c.quit {
			c.putBack(string(words[0]), strconv.FormatUint(next, 10), "MAX", strconv.Itoa(q.Most), "WAIT", millis(left))
			return
		}
	}
	c.wr.Array(3)
	c.wr.Int(int64(next))
	c.wr.Int(int64(lost))
	c.wr.Array(len(some))
	for i := range some {
		reply(&some[i])
	}
}

// await waits for an event number next, and is false when none came in
// time, the client has left, connections are to rest, or the server ends. Answers that were collected
// before go out first.
func await(c *conn, wait func(context.Context, uint64) bool, next uint64, patience time.Duration, halted <-chan struct{}) bool {
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
	return wait(ctx, next)
}
