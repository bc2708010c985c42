package server

import (
	"context"
	"os"
	"strings"
	"time"

	"cascadekv/internal/args"
)

// Upgrade asks for another program in this one's place.
type Upgrade struct {
	Binary string // path, of which Options.Upgrade judges; "" for where this program came from
	Conn   uint64 // that asks, see HandOver
}

// cmdCascadeUpgrade replaces this program by another one, which answers: nothing
// comes back from here but a refusal.
func cmdCascadeUpgrade(c *conn, words [][]byte) {
	u := Upgrade{Conn: c.id}
	binary, wait, bad := args.ParseUpgrade(words[1:])
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	u.Binary = binary
	if c.srv.opt.Upgrade == nil {
		c.wr.Error("ERR this rank can not be upgraded in place; restart it")
		return
	}
	if c.transfers.HasRing() {
		c.wr.Error("ERR this connection has a ring, which no other program can go on with: ask on another one")
		return
	}
	if c.flush() != nil {
		c.quit = true
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	err := c.srv.opt.Upgrade(ctx, u)
	c.srv.log.Error("upgrade refused; this program goes on", "binary", u.Binary, "err", err)
	c.wr.Error("ERR upgrade refused: " + strings.ReplaceAll(err.Error(), "\n", "; "))
}

// upgraded answers the client that asked for this program.
func (c *conn) upgraded(connections int, paused time.Duration) {
	c.wr.Map(4)
	c.wr.Text("version", c.srv.opt.Version)
	c.wr.Number("pid", int64(os.Getpid()))
	c.wr.Number("paused_us", paused.Microseconds())
	c.wr.Number("connections", int64(connections))
	_ = c.flush() // a client that is gone is noticed when it is read
}
