package server

import (
	"strings"

	"cascadekv/cascade"
	"cascadekv/internal/lmcache"
	"cascadekv/internal/netio"
)

// briefKeys bounds the keys of a brief command, which this rank's memory alone answers,
// without a wait of any kind: other connections wait meanwhile.
const briefKeys = 32

// answer answers a brief command for the poller: see netio.Conn.Answer.
func (c *conn) answer(p []byte) bool {
	cmd := c.srv.parser.Parse(p)
	if cmd == nil || c.ending.Load() || c.wr.Pending() > 0 {
		return false
	}
	name := strings.ToUpper(string(cmd.Args[0]))
	h := handlers[name]
	c.checkProof()
	if h.brief == nil || !c.authed || h.own && !c.own || !h.takes(len(cmd.Args)) || !h.brief(c, cmd.Args) {
		return false
	}
	c.fixed.Observe(name, cmd.Args, !cmd.Inline && c.wr.Proto() == 2, cmd.Err != nil)
	c.sock.DropDescriptors()
	c.srv.counters.commands.Add(1)
	c.srv.counters.polled.Add(1)
	if c.wr.Flush(netio.Backlog{Conn: c.sock}) != nil {
		return false // the goroutine answers again, and ends the connection if it can not send
	}
	return true
}

func briefPing(c *conn, args [][]byte) bool {
	cmdPing(c, args)
	return true
}

func briefExists(c *conn, args [][]byte) bool {
	keys, d := args[1:], c.srv.limits.Load().Lease
	if len(keys) > briefKeys {
		return false
	}
	leased := keys
	for _, key := range keys {
		if bytes, ok := lmcache.PairOf(string(key)); ok && d > 0 {
			leased = append(leased[:len(leased):len(leased)], []byte(bytes))
		}
	}
	found, ok := c.srv.opt.Store.Here().Lease(c.ns, leased, c.owner, d)
	if ok {
		count(c, found[:len(keys)], func(is bool) bool { return is })
		cascade.Asked(c.srv.opt.Store, c.ns, keys)
	}
	return ok
}

func briefContains(c *conn, args [][]byte) bool {
	if len(args)-2 > briefKeys {
		return false
	}
	found, ok := c.srv.opt.Store.Here().Contains(string(args[1]), args[2:])
	if ok {
		contained(c, found)
		cascade.Asked(c.srv.opt.Store, string(args[1]), args[2:])
	}
	return ok
}
