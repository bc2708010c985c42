package server

import (
	"strings"

	"golang.org/x/sys/unix"
)

// cmdCascadeIndex hands over the shared index, or this connection's touch ring or
// holds.
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
	case strings.EqualFold(string(args[1]), "HOLDS"):
		if c.holds == nil {
			h, err := c.srv.opt.Store.Holds()
			if err != nil {
				c.wr.Error("ERR " + err.Error())
				return
			}
			c.holds = h
		}
		fd, size := c.holds.File()
		c.replyFile(fd, size)
	default:
		c.wr.Error(errSyntax)
	}
}

// endIndex takes in what the client touched last, and gives back what it holds.
func (c *conn) endIndex() {
	if c.touch != nil {
		c.touch.Close()
	}
	if c.holds != nil {
		c.holds.Close()
	}
}
