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
		c.replyFile(fd, size)
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
		c.replyFile(fd, size)
	default:
		c.wr.Error(errSyntax)
	}
}

// endTouches takes in what the client touched last.
func endTouches(t *cascade.Touches) {
	if t != nil {
		t.Close()
	}
}
