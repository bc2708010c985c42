package server

import "cascadekv/internal/netio"

// replyFile replies with the size of a file, and its descriptor.
func (c *conn) replyFile(fd int, size int64) {
	if c.flush() != nil {
		c.quit = true
		return
	}
	c.wr.Array(1)
	c.wr.Int(size)
	if c.wr.Flush(netio.WithDescriptor{Conn: c.sock, Send: fd}) != nil {
		c.quit = true
	}
}
