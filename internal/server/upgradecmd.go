package server

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// upgradeWait is how long an upgrade waits for connections to rest, and
	// maxUpgradeWait the longest that a client may ask for.
	upgradeWait    = 10 * time.Second
	maxUpgradeWait = 10 * time.Minute
)

// Upgrade asks for another program in this one's place.
type Upgrade struct {
	Binary string // path, of which Options.Upgrade judges; "" for where this program came from
	Conn   uint64 // that asks, see HandOver
}

// cmdCascadeUpgrade replaces this program by another one, which answers: nothing
// comes back from here but a refusal.
func cmdCascadeUpgrade(c *conn, args [][]byte) {
	u := Upgrade{Conn: c.id}
	wait := upgradeWait
	rest := args[1:]
	if len(rest)%2 != 0 {
		c.wr.Error(errSyntax)
		return
	}
	for i := 0; i < len(rest); i += 2 {
		switch value := string(rest[i+1]); strings.ToUpper(string(rest[i])) {
		case "BINARY":
			u.Binary = value
		case "WAIT":
			ms, err := strconv.ParseInt(value, 10, 64)
			if err != nil || ms < 0 {
				c.wr.Error(errNumber)
				return
			}
			wait = min(maxUpgradeWait, time.Duration(min(ms, maxUpgradeWait.Milliseconds()))*time.Millisecond)
		default:
			c.wr.Error(errSyntax)
			return
		}
	}
	if c.srv.opt.Upgrade == nil {
		c.wr.Error("ERR this rank can not be upgraded in place; restart it")
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
	c.text("version", c.srv.opt.Version)
	c.number("pid", int64(os.Getpid()))
	c.number("paused_us", paused.Microseconds())
	c.number("connections", int64(connections))
	_ = c.flush() // a client that is gone is noticed when it is read
}
