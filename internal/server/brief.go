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

// briefBytes bounds the value of a brief GET or SET.
const briefBytes = 16 << 10

// delegate answers brief commands for the goroutine of a connection.
type delegate struct{ *conn }

// Answer implements netio.Delegate.
func (c delegate) Answer(p []byte) bool {
	cmd := c.srv.parser.Parse(p)
	if cmd == nil || c.ending.Load() || c.wr.Pending() > 0 {
		return false
	}
	name := strings.ToUpper(string(cmd.Args[0]))
	h := handlers[name]
	c.checkProof()
	if h.brief == nil || !c.authed || h.own && !c.own || !h.takes(len(cmd.Args)) || !h.brief(c.conn, cmd.Args) {
		return false
	}
	note(c.conn, name, cmd.Args)
	c.fixed.Observe(name, cmd.Args, !cmd.Inline && c.wr.Proto() == 2, cmd.Err != nil)
	c.sock.DropDescriptors()
	c.srv.counters.commands.Add(1)
	c.srv.counters.polled.Add(1)
	return true
}

// Send implements netio.Delegate.
func (c delegate) Send() error {
	err := c.wr.Flush(netio.Backlog{Conn: c.sock})
	c.releaseViews()
	return err
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

func briefGet(c *conn, args [][]byte) bool {
	keys := append(make([]string, 0, 2), string(args[1]))
	if bytes, ok := lmcache.PairOf(keys[0]); ok {
		keys = append(keys, bytes)
	}
	v := c.srv.opt.Store.Here().Get(c.ns, keys, briefBytes, c.owner, c.srv.limits.Load().Lease)
	if v == nil {
		return false
	}
	c.fixed.Size = v.Size()
	c.reply(v)
	return true
}

// briefSet serves a SET whose value is an argument. The goroutine's is in a stage already.
func briefSet(c *conn, words [][]byte) bool {
	if st := c.sink.stage; st != nil && len(st.Bytes()) <= briefBytes {
		cmdSet(c, words)
		return true
	}
	if len(words) < 3 || words[2] == nil || len(words[2]) > briefBytes || !c.srv.transit.Take(int64(len(words[2])), c.own) {
		return false
	}
	defer c.srv.transit.Give(int64(len(words[2])), c.own)
	e, bad := c.entry(words)
	if bad != "" {
		return false
	}
	done, err := cascade.PutNow(c.srv.opt.Store, e, words[2])
	if done {
		c.stored(int64(len(words[2])), err)
	}
	return done
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
