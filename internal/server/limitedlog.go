package server

import (
	"errors"
	"fmt"
	"net"
	"net/http"

	"cascadekv/internal/admin"
	"cascadekv/internal/admission"
	"cascadekv/internal/loglimit"
	"cascadekv/internal/resp"
)

// limitedLogs bound the log lines that clients cause.
type limitedLogs struct {
	refused, protocol, auth loglimit.Limiter
}

// logRefused reports a connection that was refused to a listener.
func (s *Server) logRefused(listener string, nc net.Conn, uid int, err error) {
	s.counters.refused.Add(1)
	if n, ok := s.limited.refused.Allow(admission.Source(uid, admission.RemoteIP(nc))); ok {
		s.log.Warn("connection refused", "listener", listener, "from", nc.RemoteAddr().String(), "uid", uid, "err", err, "suppressed", n)
	}
}

// tlsRefusal is the alert "protocol version", after which a client of TLS gives up
// at once.
const tlsRefusal = "\x15\x03\x01\x00\x02\x02\x46"

// protocolError answers bytes that are no command in the client's own protocol
// where that is known and nothing was answered before, and reports them.
func (c *conn) protocolError(e *resp.ProtocolError) {
	c.srv.counters.protocolErrors.Add(1)
	what, answer := "protocol error", ""
	switch {
	case errors.Is(e, resp.ErrHTTP):
		what = "a client of HTTP came to the listener of RESP; metrics and health are at admin.listen"
		answer = admin.Refusal(http.StatusBadRequest, "this port speaks RESP, the protocol of Redis; metrics and health are at admin.listen")
	case errors.Is(e, resp.ErrTLS):
		what, answer = "a client of TLS came to the listener of RESP, which is not encrypted; use redis:// instead of rediss://", tlsRefusal
	}
	if answer != "" && e.Offset == 0 {
		_, _ = c.sock.Write([]byte(answer)) // it may be gone
	} else {
		c.wr.Error("ERR Protocol error: " + e.Reason + fmt.Sprintf(" at byte %d", e.Offset))
	}
	if n, ok := c.srv.limited.protocol.Allow(c.source + what); ok {
		c.srv.log.Info(what, "conn", c.id, "peer", c.sock.Peer(), "err", e, "suppressed", n)
	}
}

// logRest reports what was suppressed after the last line of each kind.
func (s *Server) logRest() {
	for _, l := range []struct {
		limit *loglimit.Limiter
		what  string
	}{
		{&s.limited.refused, "connections refused"}, {&s.limited.protocol, "protocol errors"}, {&s.limited.auth, "failed authentications"},
	} {
		if n := l.limit.Rest(); n > 0 {
			s.log.Warn("more of what was logged before", "events", l.what, "suppressed", n)
		}
	}
}
