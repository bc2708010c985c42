package server

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// putBack makes a command the next one to be read.
func (c *conn) putBack(words ...string) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	c.sock.SetPushback(append([]byte(b.String()), c.unread()...))
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
