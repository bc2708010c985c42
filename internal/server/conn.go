package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/admission"
	"cascadekv/internal/deadline"
	"cascadekv/internal/holdings"
	"cascadekv/internal/lmcache"
	"cascadekv/internal/netio"
	"cascadekv/internal/resp"
	"cascadekv/internal/transfer"
)

const (
	// flushAt is how much is collected of pipelined replies.
	flushAt = 256 << 10

	databases = 16 // as Redis
)

// conn is one client connection. It belongs to its goroutine, except where
// noted.
type conn struct {
	client
	login
	deadline.Deadline

	srv  *Server
	id   uint64
	sock *netio.Conn
	rd   *resp.Reader
	wr   resp.Writer
	sink valueSink

	views   []*cascade.View // borrowed by wr until the next flush
	sending *cascade.View   // by send; nil: none

	name  string
	db    int
	ns    string
	fixed lmcache.Client

	owner     string // of leases
	held      holdings.Client
	transfers *transfer.Client // nil until the first region
	touch     *cascade.Touches // nil until asked for, as the next
	holds     *cascade.Holds

	together cascade.Pipeline

	quit   bool
	ending atomic.Bool // set by interrupt, from any goroutine
}

// client is who is at the other end.
type client struct {
	own    bool   // the rank's own user, on the unix socket
	uid    int    // admission.UnknownUID: on another machine
	source string // for limits: a user or an address
}

// newConn takes nc over.
func newConn(s *Server, nc net.Conn, id uint64) (*conn, error) {
	w, err := s.poller.NewConn(nc)
	if err != nil {
		return nil, err
	}
	_, tcp := nc.(*net.TCPConn)
	return connOf(s, w, id, tcp), nil
}

// connOf is a new connection on a socket.
func connOf(s *Server, w *netio.Conn, id uint64, tcp bool) *conn {
	c := &conn{srv: s, id: id, held: holdings.Client{Budget: s.budget}, owner: ownerOf(id), sock: w, rd: resp.NewReader(w)}
	c.uid, c.Within = admission.UnknownUID, s.opt.AnswerWithin
	w.Idle, w.Borrowed, w.Delegate = c.rd.Idle, c.borrowed, delegate{c}
	c.fixed = lmcache.NewClient(tcp)
	c.sink.conn = c
	c.reset()
	return c
}

// reset puts the connection into the state of a new one.
func (c *conn) reset() {
	c.wr.SetProto(2)
	c.selectDB(0)
	c.held.DropAll()
	c.name = ""
	c.authed = false
	c.proof.Store(nil)
	if secret := c.srv.secret.Load(); *secret == "" {
		c.letIn(secret)
	}
}

func (c *conn) selectDB(n int) {
	c.db = n
	c.ns = databaseNamespace(n)
}

func databaseNamespace(n int) string { return fmt.Sprintf("redis/%d", n) }

// interrupt ends the connection after the command it is in. It may be called
// from any goroutine.
func (c *conn) interrupt() {
	c.ending.Store(true)
	c.sock.Shutdown(false)
}

// serve answers commands until the connection ends.
func (c *conn) serve() {
	defer c.sock.Close()
	defer c.sink.abort()
	defer c.releaseViews()
	defer c.held.DropAll()
	defer c.endTransfers()
	defer c.endIndex()
	defer c.rd.Close()
	for !c.quit && !c.ending.Load() {
		if q := c.srv.poller.Quiescing(); q != nil {
			if c.flush() != nil || c.transfers.HasRing() {
				return
			}
			q.Rest(c.sock)
			continue
		}
		c.Begin()
		c.bind()
		alone := c.rd.Buffered() == 0
		cmd, err := c.rd.Next(&c.sink)
		if errors.Is(err, netio.ErrQuiesce) {
			c.rd.Reset(c.sock)
			continue
		}
		if err != nil {
			c.ended(err)
			return
		}
		c.sock.Patience = 0
		c.Spent(c.sink.ready)
		c.srv.counters.commands.Add(1)
		brief := !c.tooEarly() && c.dispatch(cmd)
		c.sock.Served(brief && alone && c.rd.Buffered() == 0)
		c.sink.abort()
		if !c.more() {
			c.sock.DropDescriptors() // whose command did not take them
		}
		if c.rd.Buffered() == 0 || c.wr.Pending() >= flushAt || c.quit || c.Owes() {
			if c.flushSoon() != nil {
				return
			}
		}
		if !c.more() {
			c.together.End(c.srv.opt.Store, c.ns) // once the client has its answers
		}
	}
	_ = c.flush()
}

// more reports whether something has come behind the command.
func (c *conn) more() bool { return c.rd.Buffered()+len(c.sock.Pushback()) > 0 }

// ended replies to the end of a stream where a reply is of use.
func (c *conn) ended(err error) {
	var broken *resp.ProtocolError
	switch {
	case errors.As(err, &broken) && broken.Limit:
		c.wr.Error(fmt.Sprintf("NOAUTH Authentication required: before it a command has %d arguments and %d bytes at most", earlyArgs, earlyBytes))
		c.srv.counters.protocolErrors.Add(1)
	case errors.As(err, &broken):
		c.protocolError(broken)
	case errors.Is(err, io.EOF), c.ending.Load(), c.fixed.Waiting:
	case c.bound && errors.Is(err, os.ErrDeadlineExceeded):
		c.wr.Error(fmt.Sprintf("NOAUTH no authentication within %v", authWithin))
	default:
		c.srv.log.Debug("connection ended", "conn", c.id, "err", err)
	}
	_ = c.flush()
}

// flush sends the collected replies and gives back what they borrowed.
func (c *conn) flush() error {
	c.Sent()
	if c.wr.Pending() == 0 && c.sock.BacklogLen() == 0 {
		return nil
	}
	defer c.Spent(time.Now())
	err := c.sock.FlushBacklog()
	if err == nil {
		err = c.wr.Flush(c.sock)
	}
	c.releaseViews()
	return err
}

// mostBacklog is how many bytes of answers are kept for a client that sends and
// does not read; with as many nothing more is read from it until it reads.
const mostBacklog = 64 << 10

// flushSoon is flush for a client that goes on sending: short answers that it does
// not read are kept for a while.
func (c *conn) flushSoon() error {
	if !c.authed || len(c.views) > 0 || c.wr.Pending()+int64(c.sock.BacklogLen()) > mostBacklog {
		return c.flush()
	}
	c.Sent()
	if c.wr.Pending() == 0 {
		return nil
	}
	return c.wr.Flush(netio.Backlog{Conn: c.sock})
}

// borrowed is the size of the values that a reply which is being sent borrows.
func (c *conn) borrowed() int64 {
	n := int64(0)
	for _, v := range c.views {
		n += v.Size()
	}
	if c.sending != nil {
		n += c.sending.Size()
	}
	return n
}

func (c *conn) releaseViews() {
	for i, v := range c.views {
		v.Release()
		c.views[i] = nil
	}
	c.views = c.views[:0]
}

// handler serves one command; args[0] is its name.
type handler struct {
	run  func(c *conn, args [][]byte)
	min  int  // arguments at least, the name included
	max  int  // at most, 0: no bound
	open bool // allowed before AUTH
	asks bool // with one key, it counts for the pipeline that it is in
	own  bool // for the rank's own user on its unix socket only

	// brief serves the command if this rank's memory is enough for that, and else does
	// nothing; nil: it is not.
	brief func(c *conn, args [][]byte) bool
}

// takes reports whether a command may have so many arguments.
func (h handler) takes(n int) bool { return n >= h.min && (h.max == 0 || n <= h.max) }

// errForeign is for those who ask for memory that is shared with the rank.
const errForeign = "NOPERM this command is for the rank's own user on its unix socket"

// dispatch answers one command, and reports whether it was brief.
func (c *conn) dispatch(cmd *resp.Command) (brief bool) {
	name := strings.ToUpper(string(cmd.Args[0]))
	c.fixed.Observe(name, cmd.Args, !cmd.Inline && c.wr.Proto() == 2, cmd.Err != nil)
	c.checkProof()
	h, ok := handlers[name]
	switch {
	case !ok:
		c.wr.Error(fmt.Sprintf("ERR unknown command '%.128s'; docs/protocol.md lists what a rank serves", cmd.Args[0]))
	case !c.authed && !h.open:
		c.wr.Error("NOAUTH Authentication required.")
	case h.own && !c.own:
		c.wr.Error(errForeign)
	case len(cmd.Args) < h.min && cmd.Err == nil, h.max > 0 && len(cmd.Args) > h.max:
		c.wr.Error(fmt.Sprintf("ERR wrong number of arguments for '%s' command", strings.ToLower(name)))
	case cmd.Err != nil && name != "SET" && name != "CASCADE.PUT":
		c.wr.Error(droppedText(cmd.Err))
	default:
		if cmd.Err != nil {
			c.sink.err = cmd.Err
		}
		if h.asks && len(cmd.Args) == 2 {
			c.together.Asked(cmd.Args[1], c.more())
		}
		note(c, name, cmd.Args)
		if h.brief != nil && h.brief(c, cmd.Args) {
			return true
		}
		h.run(c, cmd.Args)
	}
	return false
}

// droppedText is what a client is answered whose arguments were dropped.
func droppedText(err error) string {
	if errors.Is(err, resp.ErrBusy) {
		return "BUSY " + err.Error()
	}
	return "ERR " + err.Error()
}
