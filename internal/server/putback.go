package server

import (
	"strconv"
	"time"

	"cascadekv/internal/resp"
)

// putBack makes a command the next one to be read.
func (c *conn) putBack(words ...string) {
	c.sock.SetPushback(append(resp.AppendCommand(nil, words...), c.unread()...))
	c.rd.Reset(c.sock)
}

// unread is a copy of what was received and not served.
func (c *conn) unread() []byte {
	return append(append([]byte(nil), c.rd.Unread()...), c.sock.Pushback()...)
}

// millis is a wait in milliseconds, 1 at least.
func millis(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
