package server

import (
	"strings"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
)

// cmdCascadeIndex hands over the shared index, or this connection's touch ring.
func cmdCascadeIndex(c *conn, args [][]byte) {
	switch {
	case len(args) == 1:
		fd, size, err := c.srv.opt.Store.Index()
		if err != nil {
			c.wr.Error("ERR " + err.Error())
			return
		}
		defer func() { _ = unix.Close(fd) }() // only the client's copy matters
		c.handOver(fd, size)
	case strings.EqualFold(string(args[1]), "TOUCHES"):
		if c.touch == nil {
			t, err := c.srv.opt.Store.Touches()
			if err != nil {
				c.wr.Error("ERR " + err.Error())
				return
			}
			c.touch = t
		}
		fd, size := c.touch.File()
		c.handOver(fd, size)
	default:
		c.wr.Error(errSyntax)
	}
}

// handOver replies with the size of a file, and its descriptor.
func (c *conn) handOver(fd int, size int64) {
	if c.flush() != nil {
		c.quit = true
		return
	}
	c.wr.Array(1)
	c.wr.Int(size)
	if c.wr.Flush(rights{c.wire, fd}) != nil {
		c.quit = true
	}
}

// endTouches takes in what the client touched last.
func endTouches(t *cascade.Touches) {
	if t != nil {
		t.Close()
	}
}
