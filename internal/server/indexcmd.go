package server

import (
	"strings"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/internal/args"
	"cascadekv/internal/region"
	"cascadekv/internal/transfer"
)

// cmdCascadeIndex hands over the shared index, or this connection's touch ring or
// holds.
func cmdCascadeIndex(c *conn, words [][]byte) {
	switch {
	case len(words) == 1:
		fd, size, err := c.srv.opt.Store.SharedIndex().Open()
		if err != nil {
			c.wr.Error("ERR " + err.Error())
			return
		}
		defer func() { _ = unix.Close(fd) }() // only the client's copy matters
		c.replyFile(fd, size)
	case strings.EqualFold(string(words[1]), "TOUCHES"):
		replyOwn(c, &c.touch, func() (*cascade.Touches, error) { return c.srv.opt.Store.SharedIndex().Touches(senderOf(c)) })
	case strings.EqualFold(string(words[1]), "HOLDS"):
		replyOwn(c, &c.holds, c.srv.opt.Store.SharedIndex().Holds)
	default:
		c.wr.Error(args.Syntax)
	}
}

// replyOwn hands over a file of the connection's own, made when it is first asked for.
func replyOwn[F interface {
	comparable
	File() (fd int, size int64)
}](c *conn, own *F, open func() (F, error)) {
	var none F
	if *own == none {
		err := c.srv.jobs.Budget.Take(region.Cost{}, transfer.OneFile)
		if err != nil {
			c.wr.Error("ERR " + err.Error())
			return
		}
		f, err := open()
		if err != nil {
			c.srv.jobs.Budget.Give(transfer.OneFile)
			c.wr.Error("ERR " + err.Error())
			return
		}
		*own = f
	}
	fd, size := (*own).File()
	c.replyFile(fd, size)
}

// endIndex takes in what the client touched last, and gives back what it holds.
func (c *conn) endIndex() {
	if c.touch != nil {
		c.touch.Close()
		c.srv.jobs.Budget.Give(transfer.OneFile)
	}
	if c.holds != nil {
		c.holds.Close()
		c.srv.jobs.Budget.Give(transfer.OneFile)
	}
}
