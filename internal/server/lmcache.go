package server

import "time"

// missClose is how long a client that can not see a miss is left
// hanging before the connection is closed, which it notices.
const missClose = 5 * time.Second

// miss answers a GET of an absent key.
func (c *conn) miss() {
	if !c.fixed.Fixed() || !c.srv.limits.Load().FixedMiss {
		c.wr.Null()
		return
	}
	if c.fixed.Size >= 0 {
		c.wr.ErrorExact("ERR absent", c.fixed.Header())
		return
	}
	c.wr.Null()
	c.fixed.Waiting = true
	c.sock.Patience = missClose
}
